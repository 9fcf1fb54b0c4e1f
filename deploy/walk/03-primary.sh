#!/bin/sh
# Step 3: PostgreSQL, with an archive of its WAL.
set -eu
. "$(dirname "$0")/settings.sh"

initdb --pgdata="$WALK/primary" --username=postgres --pwfile="$WALK/secrets/postgres" \
  --auth=scram-sha-256 --data-checksums
cat >> "$WALK/primary/postgresql.conf" <<END
listen_addresses = 'localhost'
port = $PRIMARY_PORT
unix_socket_directories = '$WALK/run'
ssl = on
ssl_cert_file = '$WALK/tls/certificate.pem'
ssl_key_file = '$WALK/tls/key.pem'
max_connections = 120
max_wal_size = 2GB
checkpoint_timeout = 15min
random_page_cost = 1.1
jit = off
archive_mode = on
archive_command = '$WALK/archive.sh %p %f'
END
mkdir -p "$WALK/archive"
cat > "$WALK/archive.sh" <<END
#!/bin/sh
# A promoted standby archives files again that the old primary has archived: the same content is no failure.
cmp --quiet "\$1" "$WALK/archive/\$2" && exit
test ! -e "$WALK/archive/\$2" && cp "\$1" "$WALK/archive/part" && sync "$WALK/archive/part" &&
  mv "$WALK/archive/part" "$WALK/archive/\$2"
END
chmod +x "$WALK/archive.sh"
pg_ctl start --wait --pgdata="$WALK/primary" --log="$WALK/log/primary.log"

psql --port="$PRIMARY_PORT" --set=ON_ERROR_STOP=1 <<END
create role replicator login replication password '$(cat "$WALK/secrets/replicator")';
create role nuncio login password '$(cat "$WALK/secrets/nuncio")';
create role nuncio_publisher nologin;
grant pg_monitor to nuncio;
create database nuncio owner nuncio;
END
