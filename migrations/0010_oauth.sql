-- The authorization server's own storage: a table for each thing that has a life of its own. Owner: src/oauth/storage.
-- What a browser or an app holds (session ids, codes, tokens) is stored as its SHA-256 digest.
-- Hot tables refer to grants without a foreign key: its check would write a lock into the grant's row at each
-- insert. A row whose grant is gone is not found, and leaves when it expires. Room is left in their pages, so that
-- using a row up touches no index.

create table login_sessions (
  digest bytea primary key,
  uid text not null unique,
  -- Null until somebody signs in.
  account_id uuid references accounts on delete cascade,
  payload jsonb not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);

create index login_sessions_account on login_sessions (account_id) where account_id is not null;
create index login_sessions_expiry on login_sessions (expires_at);

-- A request that waits for the user: login, consent.
create table interactions (
  uid text primary key,
  payload jsonb not null,
  expires_at timestamptz not null
);

create index interactions_expiry on interactions (expires_at);

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

-- `jti` of assertions and proofs that were used (RFC 7523 section 3, RFC 9449 section 11.1).
create table used_proofs (
  digest bytea primary key,
  expires_at timestamptz not null
);

create index used_proofs_expiry on used_proofs (expires_at);
