-- Further things of the authorization server that live on their own. Owner: src/oauth/storage.

-- RFC 8628.
create table device_codes (
  digest bytea primary key,
  user_code_digest bytea not null unique,
  client_id text not null,
  payload jsonb not null,
  expires_at timestamptz not null,
  consumed_at timestamptz,
  last_polled_at timestamptz,
  -- Grows by 5 with each poll that came too soon.
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

-- Opaque access tokens alone: JWTs are stored nowhere.
create table access_tokens (
  digest bytea primary key,
  -- The token's id, which is no secret.
  token_id text not null unique,
  grant_id uuid,
  payload jsonb not null,
  expires_at timestamptz not null
);

create index access_tokens_expiry on access_tokens (expires_at);
