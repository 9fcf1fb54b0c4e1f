-- The keys that tokens are signed with. Owner: src/oauth/signing_keys.ts.

create table signing_keys (
  -- JWK thumbprint (RFC 7638): the `kid`.
  id text primary key,
  algorithm text not null check (algorithm in ('ES256', 'RS256')),
  -- The private JWK, sealed with the deployment's secret.
  sealed bytea not null,
  created_at timestamptz not null default now(),
  -- Published from the start, signing from here on: verifiers know it before they meet it.
  signs_from timestamptz not null default now(),
  -- No longer published: nothing that it signed lives.
  expires_at timestamptz
);

create function notify_signing_keys_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('nuncio_signing_keys', '');
  return null;
end $$;

create trigger signing_keys_changed after insert or update or delete on signing_keys
  for each statement execute function notify_signing_keys_changed();
