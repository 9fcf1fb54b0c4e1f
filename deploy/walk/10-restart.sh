#!/bin/sh
# Step 10: restart the nodes one after the other, under traffic.
set -eu
. "$(dirname "$0")/settings.sh"

for number in 1 2 3; do
  "$here/node.sh" stop "$number"
  "$here/node.sh" start "$number"
done
