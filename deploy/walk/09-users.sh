#!/bin/sh
# Step 9: an administrator, and an app that publishes events.
set -eu
. "$(dirname "$0")/settings.sh"

"$here/nuncio.sh" user create --admin --email admin@example.com --password - < "$WALK/secrets/admin"
umask 077
"$here/nuncio.sh" client create --name Publisher --grant client_credentials --scope write:events --json \
  > "$WALK/secrets/publisher.json"
"$here/nuncio.sh" trigger push --account admin@example.com
"$here/nuncio.sh" audit | tail -n 5
