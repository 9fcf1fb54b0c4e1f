#!/bin/sh
# Step 14: the next version, node by node.
set -eu
. "$(dirname "$0")/settings.sh"

"$here/nuncio.sh" doctor || echo "exit code $?: see what to do above"
ln -sfn versions/next "$WALK/current"
"$here/nuncio.sh" migrate
for number in 1 2 3; do
  "$here/node.sh" stop "$number"
  "$here/node.sh" start "$number"
  # nginx uses a node that failed again after 10 s.
  sleep 10
done
until curl --silent --fail --cacert "$WALK/tls/ca.pem" "https://localhost:$HTTPS_PORT/readyz"; do sleep 1; done
"$here/nuncio.sh" doctor || echo "exit code $?: see what to do above"
curl --silent --head --cacert "$WALK/tls/ca.pem" "https://localhost:$HTTPS_PORT/livez" | grep -i nuncio-version
