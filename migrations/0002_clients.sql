-- The apps. Owner: src/clients.

create table clients (
  id text primary key check (octet_length(id) between 1 and 2048),
  name text not null,
  redirect_uris text[] not null default '{}',
  -- Values of grant_type (RFC 6749).
  grant_types text[] not null default '{authorization_code,refresh_token}',
  -- Scopes that the client may ask for; also its default where it asks for none.
  scopes text[] not null default '{}',
  -- RFC 7591 token_endpoint_auth_method.
  auth_method text not null default 'client_secret_basic',
  require_pkce boolean not null default true,
  -- Whether its own token (client credentials) may subscribe to the events of every account that granted it.
  may_subscribe boolean not null default false,
  -- Further metadata of RFC 7591 that is only read back.
  metadata jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  disabled_at timestamptz
);

-- Digests of secrets: more than one lives while a secret is being replaced.
create table client_secrets (
  client_id text not null references clients on delete cascade,
  digest bytea not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  primary key (client_id, digest)
);

-- Every node keeps clients in memory and is told here when one changed.
create function notify_client_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('nuncio_client_changed', coalesce(new.id, old.id));
  return null;
end $$;

create trigger client_changed after insert or update or delete on clients
  for each row execute function notify_client_changed();

create function notify_client_secret_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('nuncio_client_changed', coalesce(new.client_id, old.client_id));
  return null;
end $$;

create trigger client_secret_changed after insert or update or delete on client_secrets
  for each row execute function notify_client_secret_changed();
