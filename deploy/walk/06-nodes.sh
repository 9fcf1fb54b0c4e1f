#!/bin/sh
# Step 6: the settings, the schema and three nodes.
set -eu
. "$(dirname "$0")/settings.sh"

umask 077
cat > "$WALK/nuncio.env" <<END
NUNCIO_BASE_URL=https://localhost:$HTTPS_PORT
DATABASE_URL=postgres://nuncio:$(cat "$WALK/secrets/nuncio")@localhost:$DATABASE_PORT/nuncio?sslmode=verify-full
NUNCIO_SECRET=$(cat "$WALK/secrets/nuncio_secret")
NUNCIO_CONFIG=$WALK/current/nuncio.config.ts
NUNCIO_TRUST_PROXY=127.0.0.1
NUNCIO_METRICS_TOKEN=$(cat "$WALK/secrets/metrics")
HOST=127.0.0.1
NODE_EXTRA_CA_CERTS=$WALK/tls/ca.pem
# Only for this walk, whose subscriber is on the same machine: without it, deliveries go to public https addresses only.
NUNCIO_INSECURE_SUBSCRIBERS=1
END
"$here/nuncio.sh" migrate
for number in 1 2 3; do
  "$here/node.sh" start "$number"
done
