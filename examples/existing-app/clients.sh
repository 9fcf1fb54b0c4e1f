npx nuncio client create --id shop-backend --name 'Shop backend' --grant client_credentials \
  --scope write:logins --scope read:accounts --scope write:accounts --json
