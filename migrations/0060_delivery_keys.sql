-- The deployment's own key pairs, by which deliveries are signed for whoever asked for `ed25519`.
-- Owner: src/webhooks/sending/delivery_key.ts.

create table delivery_keys (
  -- JWK thumbprint (RFC 7638): the `kid`.
  id text primary key,
  -- The private JWK, sealed with the deployment's secret.
  sealed bytea not null,
  created_at timestamptz not null default now(),
  -- Published from the start, signing from here on: subscribers know it before they meet it.
  signs_from timestamptz not null default now(),
  -- Replaced: it signs beside its successor until here, so that nobody has to change at one moment.
  signs_until timestamptz,
  -- No longer published: what it signed is too old to be taken.
  expires_at timestamptz
);

create function notify_delivery_keys_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('nuncio_delivery_keys', '');
  return null;
end $$;

create trigger delivery_keys_changed after insert or update or delete on delivery_keys
  for each statement execute function notify_delivery_keys_changed();
