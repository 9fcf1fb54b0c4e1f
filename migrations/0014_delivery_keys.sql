-- The deployment's key pairs that sign deliveries of subscriptions with `signature: "ed25519"`.
-- Owner: src/webhooks/sending/delivery_key.ts.

create table delivery_keys (
  -- JWK thumbprint (RFC 7638): the `kid`.
  id text primary key,
  -- The private JWK, sealed with the deployment's secret.
  sealed bytea not null,
  created_at timestamptz not null default now(),
  -- The key is published from creation on but signs only from this time, so that subscribers know it in advance.
  signs_from timestamptz not null default now(),
  -- After its replacement, the key signs together with its successor until this time, so that subscribers can switch gradually.
  signs_until timestamptz,
  -- From this time on the key is not published. Its signatures are too old to be accepted.
  expires_at timestamptz
);

create function notify_delivery_keys_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('delivery_keys', '');
  return null;
end $$;

create trigger delivery_keys_changed after insert or update or delete on delivery_keys
  for each statement execute function notify_delivery_keys_changed();
