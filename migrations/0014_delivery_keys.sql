-- The deployment's own key pairs, which sign deliveries of subscriptions with the signature `ed25519`.
-- Owner: src/webhooks/sending/delivery_key.ts.

create table delivery_keys (
  -- JWK thumbprint (RFC 7638): the `kid`.
  id text primary key,
  -- The private JWK, sealed with the deployment's secret.
  sealed bytea not null,
  created_at timestamptz not null default now(),
  -- Published from the start, signing from here on: subscribers know it before they meet it.
  signs_from timestamptz not null default now(),
  -- Replaced: it signs beside its successor until here, so that subscribers need not change at one moment.
  signs_until timestamptz,
  -- No longer published: signatures made with it are too old to be accepted.
  expires_at timestamptz
);

create function notify_delivery_keys_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform pg_notify(current_schema() || '.delivery_keys', '');
  return null;
end $$;

create trigger delivery_keys_changed after insert or update or delete on delivery_keys
  for each statement execute function notify_delivery_keys_changed();
