# Every step reads this file. Set a variable in the environment to change it.

# The folder of the scripts.
here=${here:-$(cd "$(dirname "$0")" && pwd)}

# Everything that the steps write is below this folder. Sockets are in it, too: its path has at most 80 characters.
WALK=${WALK:-$HOME/nuncio-walk}
# What npm installs: the packed file.
PACKAGE=${PACKAGE:-}

HTTPS_PORT=${HTTPS_PORT:-8443}
HTTP_PORT=${HTTP_PORT:-8080}
# The address of the database: nginx passes its connections to the primary.
DATABASE_PORT=${DATABASE_PORT:-6432}
PRIMARY_PORT=${PRIMARY_PORT:-5433}
STANDBY_PORT=${STANDBY_PORT:-5434}
RESTORED_PORT=${RESTORED_PORT:-5435}
# Of node 1. Nodes 2 and 3 have the next two ports.
NODE_PORT=${NODE_PORT:-3001}
METRICS_PORT=${METRICS_PORT:-9461}

# Debian installs the programs of PostgreSQL in a folder for each major version, and nginx in /usr/sbin.
PATH="$(ls -d /usr/lib/postgresql/*/bin | sort --version-sort | tail -n 1):$PATH:/usr/sbin"

# For psql, pg_basebackup and the other programs of PostgreSQL.
export PGHOST=localhost PGUSER=postgres PGDATABASE=postgres
export PGPASSFILE="$WALK/secrets/pgpass" PGSSLMODE=verify-full PGSSLROOTCERT="$WALK/tls/ca.pem"
