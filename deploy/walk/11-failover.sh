#!/bin/sh
# Step 11: the primary is lost. The standby takes over, and the old primary becomes its standby.
set -eu
. "$(dirname "$0")/settings.sh"

# The machine fails.
pg_ctl stop --mode=immediate --pgdata="$WALK/primary"

# Be sure that the old primary is off. Then promote, and lead the nodes to the new primary.
pg_ctl promote --wait --pgdata="$WALK/standby"
echo "server localhost:$STANDBY_PORT;" > "$WALK/nginx/primary.conf"
nginx -e "$WALK/log/nginx.log" -c "$WALK/nginx/nginx.conf" -s reload
until curl --silent --fail --cacert "$WALK/tls/ca.pem" "https://localhost:$HTTPS_PORT/readyz"; do sleep 1; done

# A new standby.
rm -r "$WALK/primary"
"$here/04-standby.sh" "$STANDBY_PORT" primary "$PRIMARY_PORT"
"$here/nuncio.sh" doctor || echo "exit code $?: see what to do above"
