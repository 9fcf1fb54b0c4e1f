#!/bin/sh
# Step 7: the doctor, from inside and from outside.
set -eu
. "$(dirname "$0")/settings.sh"

curl --silent --fail --cacert "$WALK/tls/ca.pem" "https://localhost:$HTTPS_PORT/readyz" && echo
"$here/nuncio.sh" doctor || echo "exit code $?: see what to do above"
"$here/nuncio.sh" doctor connect "https://localhost:$HTTPS_PORT" || echo "exit code $?: see what to do above"
