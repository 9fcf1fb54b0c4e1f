#!/bin/sh
# Step 13: restore the base backup and the archive into a new server.
set -eu
. "$(dirname "$0")/settings.sh"

for number in 1 2 3; do "$here/node.sh" stop "$number"; done

# The last segment of WAL goes to the archive. Both servers are then given up.
last=$(psql --port="$DATABASE_PORT" --tuples-only --no-align \
  --command="select pg_walfile_name(pg_switch_wal())")
until [ -f "$WALK/archive/$last" ]; do sleep 0.2; done
pg_ctl stop --mode=fast --pgdata="$WALK/primary"
pg_ctl stop --mode=fast --pgdata="$WALK/standby"

cp -a "$WALK/backups/base" "$WALK/restored"
# The backup is of a server that waited for a standby. The restored one has none yet.
sed -i '/synchronous_standby_names/d' "$WALK/restored/postgresql.auto.conf"
cat >> "$WALK/restored/postgresql.conf" <<END
port = $RESTORED_PORT
restore_command = 'cp $WALK/archive/%f %p'
END
touch "$WALK/restored/recovery.signal"
pg_ctl start --wait --pgdata="$WALK/restored" --log="$WALK/log/restored.log"
until psql --port="$RESTORED_PORT" --tuples-only --command="select pg_is_in_recovery()" | grep -q f; do sleep 1; done

echo "server localhost:$RESTORED_PORT;" > "$WALK/nginx/primary.conf"
nginx -e "$WALK/log/nginx.log" -c "$WALK/nginx/nginx.conf" -s reload
# For a moment, nginx also accepts connections with its configuration of before, and closes them.
until psql --port="$DATABASE_PORT" --command="select pg_is_in_recovery(), timeline_id from pg_control_checkpoint()"; do
  sleep 1
done
"$here/nuncio.sh" epoch begin
for number in 1 2 3; do "$here/node.sh" start "$number"; done
until curl --silent --fail --cacert "$WALK/tls/ca.pem" "https://localhost:$HTTPS_PORT/readyz"; do sleep 1; done

rm -r "$WALK/primary" "$WALK/standby"
"$here/04-standby.sh" "$RESTORED_PORT" standby "$STANDBY_PORT"
"$here/nuncio.sh" doctor || echo "exit code $?: see what to do above"
