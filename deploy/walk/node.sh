#!/bin/sh
# Starts or stops a node and waits: node.sh start 1, node.sh stop 1. In production, systemd does this.
set -eu
. "$(dirname "$0")/settings.sh"

action=$1 number=$2
pid="$WALK/run/node-$number.pid"
port=$((NODE_PORT + number - 1))

if [ "$action" = stop ]; then
  kill -TERM "$(cat "$pid")"
  while kill -0 "$(cat "$pid")" 2> /dev/null; do sleep 0.2; done
  exit
fi
set -a
. "$WALK/nuncio.env"
NUNCIO_NODE_NAME=node-$number
PORT=$port
NUNCIO_METRICS_PORT=$((METRICS_PORT + number - 1))
set +a
cd "$WALK/current"
nohup node node_modules/nuncio/dist/main.js start --no-migrate >> "$WALK/log/node-$number.log" 2>&1 &
echo $! > "$pid"
until curl --silent --fail "http://127.0.0.1:$port/readyz"; do
  kill -0 "$(cat "$pid")" || { tail -n 3 "$WALK/log/node-$number.log" >&2; exit 1; }
  sleep 0.5
done
echo
