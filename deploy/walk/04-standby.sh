#!/bin/sh
# Step 4: a standby of the primary. Later also: a standby of the server at another port, in another folder.
set -eu
. "$(dirname "$0")/settings.sh"

from=${1:-$PRIMARY_PORT} folder=${2:-standby} port=${3:-$STANDBY_PORT}

pg_basebackup --port="$from" --username=replicator --pgdata="$WALK/$folder" --checkpoint=fast \
  --wal-method=stream --write-recovery-conf --create-slot --slot="$folder"
echo "port = $port" >> "$WALK/$folder/postgresql.conf"
pg_ctl start --wait --pgdata="$WALK/$folder" --log="$WALK/log/$folder.log"

# From now on, each commit waits until the standby has it.
psql --port="$from" --command="alter system set synchronous_standby_names = '*'" \
  --command="select pg_reload_conf()"
until psql --port="$from" --tuples-only --no-align \
  --command="select sync_state from pg_stat_replication" | grep --quiet --line-regexp sync; do
  sleep 1
done
psql --port="$from" --command="select application_name, state, sync_state from pg_stat_replication"
