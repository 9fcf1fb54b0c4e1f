#!/bin/sh
# Step 15: stop everything. What is left is in the folder, which you can delete.
set -u
. "$(dirname "$0")/settings.sh"

for number in 1 2 3; do "$here/node.sh" stop "$number"; done
nginx -e "$WALK/log/nginx.log" -c "$WALK/nginx/nginx.conf" -s stop
for folder in primary standby restored; do
  if [ -f "$WALK/$folder/postmaster.pid" ]; then pg_ctl stop --mode=fast --pgdata="$WALK/$folder"; fi
done
