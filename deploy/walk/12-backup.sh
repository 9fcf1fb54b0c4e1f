#!/bin/sh
# Step 12: a base backup beside the archive of WAL, and a dump.
set -eu
. "$(dirname "$0")/settings.sh"

"$here/nuncio.sh" doctor || echo "exit code $?: see what to do above"
mkdir -p "$WALK/backups"
pg_basebackup --port="$DATABASE_PORT" --username=replicator --pgdata="$WALK/backups/base" --checkpoint=fast \
  --wal-method=stream
pg_verifybackup "$WALK/backups/base"
psql --port="$DATABASE_PORT" --command="select archived_count, last_archived_wal, failed_count from pg_stat_archiver"

# Try the dump at once, in a database that is deleted again.
pg_dump --port="$DATABASE_PORT" --username=nuncio --format=custom --schema=nuncio \
  --file="$WALK/backups/nuncio.dump" nuncio
createdb --port="$DATABASE_PORT" --owner=nuncio nuncio_trial
pg_restore --port="$DATABASE_PORT" --username=nuncio --dbname=nuncio_trial --exit-on-error --single-transaction \
  "$WALK/backups/nuncio.dump"
psql --port="$DATABASE_PORT" --dbname=nuncio_trial --command="select count(*) as accounts from nuncio.accounts"
dropdb --port="$DATABASE_PORT" nuncio_trial
