#!/bin/sh
# Runs a command with the settings of node 1: nuncio.sh doctor.
set -eu
. "$(dirname "$0")/settings.sh"

set -a
. "$WALK/nuncio.env"
PORT=$NODE_PORT
NUNCIO_METRICS_PORT=$METRICS_PORT
set +a
cd "$WALK/current"
exec node node_modules/nuncio/dist/main.js "$@"
