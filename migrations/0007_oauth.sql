-- Storage of the authorization server, one table per kind of object. Owner: src/oauth/storage.
-- Session ids, codes and tokens are stored as SHA-256 digests.
-- Frequently written tables refer to grants without a foreign key, whose check would lock the grant's row at each insert. Look-ups
-- ignore rows whose grant is gone, and such rows are deleted when they expire. A low fillfactor leaves room for marking a row as
-- used without an index update.

create table login_sessions (
  digest bytea primary key,
  uid text not null unique,
  -- Null until the user signs in.
  account_id uuid references accounts on delete cascade,
  payload jsonb not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);

create index login_sessions_account on login_sessions (account_id) where account_id is not null;
create index login_sessions_expiry on login_sessions (expires_at);

-- Grants of the server's own apps (src/clients/own_clients.ts), which belong to the login session that made them. The foreign key
-- prevents a grant for a session that has just ended. Owner: src/oauth/storage/session.ts.
create table session_grants (
  grant_id uuid primary key references grants on delete cascade,
  session_uid text not null references login_sessions (uid) on delete cascade
);

create index session_grants_session on session_grants (session_uid);

-- Every statement that deletes a session, also because it expired, withdraws these grants.
create function end_grant_of_session() returns trigger language plpgsql set search_path from current as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'session_ended'
  where id = old.grant_id and withdrawn_at is null;
  return null;
end $$;

create trigger session_grant_ended after delete on session_grants
  for each row execute function end_grant_of_session();

-- Authorization requests that wait for the user to sign in or consent.
create table interactions (
  uid text primary key,
  payload jsonb not null,
  expires_at timestamptz not null
);

create index interactions_expiry on interactions (expires_at);
-- For ending the sessions of an account, also while many requests wait.
create index interactions_account on interactions ((payload #>> '{result,login,accountId}'))
  where payload #>> '{result,login,accountId}' is not null;

create table authorization_codes (
  digest bytea primary key,
  grant_id uuid not null,
  payload jsonb not null,
  expires_at timestamptz not null,
  consumed_at timestamptz
) with (fillfactor = 60);

create index authorization_codes_expiry on authorization_codes using brin (expires_at);

create table refresh_tokens (
  digest bytea primary key,
  grant_id uuid not null,
  payload jsonb not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  consumed_at timestamptz
) with (fillfactor = 60);

create index refresh_tokens_grant on refresh_tokens (grant_id);
create index refresh_tokens_expiry on refresh_tokens using brin (expires_at);

-- Opaque access tokens. JWTs are not stored.
create table access_tokens (
  digest bytea primary key,
  -- The token's id, which is not secret.
  token_id text not null unique,
  grant_id uuid,
  payload jsonb not null,
  expires_at timestamptz not null
);

create index access_tokens_expiry on access_tokens (expires_at);

-- RFC 8628.
create table device_codes (
  digest bytea primary key,
  user_code_digest bytea not null unique,
  client_id text not null,
  payload jsonb not null,
  expires_at timestamptz not null,
  consumed_at timestamptz,
  last_polled_at timestamptz,
  -- Grows by 5 with each poll that comes too early.
  interval_seconds integer not null default 5
);

create index device_codes_expiry on device_codes (expires_at);

-- RFC 9126.
create table pushed_requests (
  digest bytea primary key,
  payload jsonb not null,
  expires_at timestamptz not null,
  consumed_at timestamptz
);

create index pushed_requests_expiry on pushed_requests (expires_at);

-- `jti` of used assertions and proofs (RFC 7523 section 3, RFC 9449 section 11.1).
create table used_proofs (
  digest bytea primary key,
  expires_at timestamptz not null
);

create index used_proofs_expiry on used_proofs (expires_at);

-- Keys that sign tokens. Owner: src/oauth/signing_keys.ts.
create table signing_keys (
  -- JWK thumbprint (RFC 7638): the `kid`.
  id text primary key,
  algorithm text not null check (algorithm in ('ES256', 'RS256')),
  -- The private JWK, sealed with the deployment's secret.
  sealed bytea not null,
  created_at timestamptz not null default now(),
  -- The key is published from creation on but signs only from this time, so that verifiers know it in advance.
  signs_from timestamptz not null default now(),
  -- From this time on the key is not published. All tokens that it signed have expired.
  expires_at timestamptz
);

create function notify_signing_keys_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('signing_keys', '');
  return null;
end $$;

create trigger signing_keys_changed after insert or update or delete on signing_keys
  for each statement execute function notify_signing_keys_changed();
