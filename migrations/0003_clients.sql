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
  -- The `updated_at` of the version that last lost the verification. Consent to an earlier one does not spare users the consent
  -- page.
  unverified_at timestamptz,
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

-- Verification applies to the description that an administrator read and ends when that changes, whichever statement changes it.
-- This is what an administrator verifies, by the names of RFC 7591: everything that users see, or that decides who gets what.
-- Members that are unknown here count, too.
create function verified_description(client clients) returns jsonb language sql stable set search_path from current as $$
  select client.metadata - '{contacts,software_id,software_version}'::text[] || jsonb_build_object(
    'client_name', client.name, 'redirect_uris', client.redirect_uris, 'grant_types', client.grant_types,
    'scope', client.scopes, 'token_endpoint_auth_method', client.auth_method, 'require_pkce', client.require_pkce,
    'logo', client.logo)
$$;

-- A statement that sets verified_at itself, to a new time or to null, decides about the verification. Times of changes increase,
-- also in milliseconds, so that an administrator can name the version that they read.
create function check_verification() returns trigger language plpgsql set search_path from current as $$
declare
  old_description jsonb;
  new_description jsonb;
begin
  new.updated_at := greatest(new.updated_at, old.updated_at + interval '1 millisecond');
  if old.verified_at is null then
    return new;
  end if;
  if new.verified_at = old.verified_at then
    old_description := verified_description(old);
    new_description := verified_description(new);
    if old_description <> new_description then
      new.verified_at := null;
      insert into audit_entries (kind, client_id, details) values ('app.unverified', new.id, jsonb_build_object(
        'changed', array(
          select name from jsonb_object_keys(old_description || new_description) as name
          where old_description -> name is distinct from new_description -> name order by name)));
    end if;
  end if;
  if new.verified_at is null then
    new.unverified_at := new.updated_at;
  end if;
  return new;
end $$;

create trigger client_verification before update on clients
  for each row execute function check_verification();

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
  perform announce('client_changed', coalesce(new.id, old.id));
  return null;
end $$;

create trigger client_changed after insert or update or delete on clients
  for each row execute function notify_client_changed();

create function notify_client_secret_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('client_changed', coalesce(new.client_id, old.client_id));
  return null;
end $$;

create trigger client_secret_changed after insert or update or delete on client_secrets
  for each row execute function notify_client_secret_changed();
