npx nuncio client create --name 'Order watch' --redirect-uri "$PARTNER_URL/callback" \
  --scope read:orders --scope read:webhooks --scope write:webhooks --json
