#!/bin/sh
# Step 7: the doctor, from inside and from outside.
set -eu
. "$(dirname "$0")/settings.sh"
here=$(cd "$(dirname "$0")" && pwd)

curl --silent --fail --cacert "$WALK/tls/ca.pem" "https://localhost:$HTTPS_PORT/readyz" && echo
"$here/nuncio.sh" doctor
"$here/nuncio.sh" doctor connect "https://localhost:$HTTPS_PORT"
