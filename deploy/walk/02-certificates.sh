#!/bin/sh
# Step 2: secrets, and certificates of an authority of your own.
set -eu
. "$(dirname "$0")/settings.sh"

umask 077
mkdir -p "$WALK/secrets" "$WALK/tls" "$WALK/log" "$WALK/run"
cd "$WALK/secrets"
for name in postgres replicator nuncio metrics admin; do
  openssl rand -hex 24 > "$name"
done
openssl rand -base64 32 > nuncio_secret
for name in postgres replicator nuncio; do
  echo "localhost:*:*:$name:$(cat "$name")"
done > pgpass

cd "$WALK/tls"
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj '/CN=Nuncio walk' -keyout ca.key -out ca.pem
openssl req -newkey rsa:2048 -nodes -subj '/CN=localhost' \
  -addext 'subjectAltName=DNS:localhost' -keyout key.pem -out request.pem
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -days 365 -copy_extensions copy -out certificate.pem
openssl verify -CAfile ca.pem certificate.pem
