#!/bin/sh
# Step 8: the metrics of each node, and Prometheus.
set -eu
. "$(dirname "$0")/settings.sh"

for port in $METRICS_PORT $((METRICS_PORT + 1)) $((METRICS_PORT + 2)); do
  curl --silent --fail --header "Authorization: Bearer $(cat "$WALK/secrets/metrics")" \
    "http://127.0.0.1:$port/metrics" | grep --count '^nuncio_'
done
# Neither without the token nor through the proxy.
curl --silent --output /dev/null --write-out '%{http_code}\n' "http://127.0.0.1:$METRICS_PORT/metrics"
curl --silent --output /dev/null --write-out '%{http_code}\n' --cacert "$WALK/tls/ca.pem" \
  "https://localhost:$HTTPS_PORT/metrics"

cat > "$WALK/prometheus.yml" <<END
rule_files: [$WALK/current/node_modules/nuncio/deploy/prometheus/rules.yaml]
scrape_configs:
  - job_name: nuncio
    authorization: { credentials_file: $WALK/secrets/metrics }
    static_configs:
      - targets: ['127.0.0.1:$METRICS_PORT', '127.0.0.1:$((METRICS_PORT + 1))', '127.0.0.1:$((METRICS_PORT + 2))']
END
if command -v promtool > /dev/null; then promtool check config "$WALK/prometheus.yml"; fi
