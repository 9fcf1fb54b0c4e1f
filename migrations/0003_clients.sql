-- Clients. Owner: src/clients.

create table clients (
  id text primary key check (octet_length(id) between 1 and 2048),
  name text not null,
  redirect_uris text[] not null default '{}',
  -- Values of grant_type (RFC 6749).
  grant_types text[] not null default '{authorization_code,refresh_token}',
  -- Scopes that the client may request, and the default if it requests none.
  scopes text[] not null default '{}',
  -- RFC 7591 token_endpoint_auth_method.
  auth_method text not null default 'client_secret_basic',
  require_pkce boolean not null default true,
  -- Whether the client's own token (client credentials) may subscribe to events of all accounts with a grant for it.
  may_subscribe boolean not null default false,
  -- Other metadata of RFC 7591, which is only stored and returned.
  metadata jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  disabled_at timestamptz,
  -- Source of the registration: the operator, the app itself (RFC 7591), the metadata document whose URL is the client id, or
  -- an account by `/apps`.
  origin text not null default 'operator' check (origin in ('operator', 'registration', 'document', 'account')),
  -- An epoch lasts until the client is deleted, disabled or suspended. Each access token contains the epoch in which it was
  -- issued, and the withdrawal list contains the epochs that ended. Invalidation therefore does not compare clocks of nodes.
  epoch uuid not null default gen_random_uuid(),
  verified_at timestamptz,
  -- Suspension is reversible. Meanwhile the client gets no tokens, its grants do not work, and its deliveries stop.
  suspended_at timestamptz,
  -- The digest in the URL of the uploaded logo. Null without a logo.
  logo text,
  is_stopped boolean not null generated always as (disabled_at is not null or suspended_at is not null) stored
);

create index clients_unused on clients (created_at) where origin <> 'operator';
-- Read for each event. Almost empty, like accounts_disabled.
create index clients_stopped on clients (id) where is_stopped;
-- For lists of clients under /admin.
create index clients_by_creation on clients (created_at desc, id desc);
create index clients_by_name on clients ((lower(name)) collate "C", id);

create function begin_client_epoch() returns trigger language plpgsql set search_path from current as $$
begin
  new.epoch := gen_random_uuid();
  return new;
end $$;

create trigger client_disabled_begins_epoch before update of disabled_at on clients
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function begin_client_epoch();

create trigger client_suspended_begins_epoch before update of suspended_at on clients
  for each row when (old.suspended_at is null and new.suspended_at is not null)
  execute function begin_client_epoch();

-- Digests of client secrets. A client has several while a secret is being replaced.
create table client_secrets (
  client_id text not null references clients on delete cascade,
  digest bytea not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  id uuid not null default gen_random_uuid(),
  -- The account that created the secret. Null for the operator and for the app itself.
  created_by uuid,
  primary key (client_id, digest)
);

create unique index client_secrets_id on client_secrets (id);

-- Every node caches clients and receives a notification of each change.
create function notify_client_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform pg_notify(current_schema() || '.client_changed', coalesce(new.id, old.id));
  return null;
end $$;

create trigger client_changed after insert or update or delete on clients
  for each row execute function notify_client_changed();

create function notify_client_secret_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform pg_notify(current_schema() || '.client_changed', coalesce(new.client_id, old.client_id));
  return null;
end $$;

create trigger client_secret_changed after insert or update or delete on client_secrets
  for each row execute function notify_client_secret_changed();
