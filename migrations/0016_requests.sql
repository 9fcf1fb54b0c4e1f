-- State of API requests. Owner: src/http.

-- Responses to requests with an Idempotency-Key. Owner: src/http/idempotency.ts.
create table idempotency_keys (
  -- Account and client of the token. Each pair has its own keys.
  owner text not null,
  key text not null,
  -- SHA-256 of the request.
  request_digest bytea not null,
  status smallint not null,
  headers jsonb not null,
  body text,
  created_at timestamptz not null default now(),
  primary key (owner, key)
);

create index idempotency_keys_created_at on idempotency_keys (created_at);

-- Requests of the current minute, over all nodes. Unlogged: a crash of the database only resets the counts. Owner:
-- src/http/rate_limit.ts.
create unlogged table rate_windows (
  -- `token:<jti>` or `address:<ip>`.
  key text not null,
  -- Minutes since 1970.
  minute bigint not null,
  used bigint not null,
  primary key (key, minute)
);
