-- The answers of requests that carried an Idempotency-Key. Owner: src/http/idempotency.ts.

create table idempotency_keys (
  -- Account and client of the token: whoever has another token pair has other keys.
  owner text not null,
  key text not null,
  -- SHA-256 of what was asked for.
  request_digest bytea not null,
  status smallint not null,
  headers jsonb not null,
  body text,
  created_at timestamptz not null default now(),
  primary key (owner, key)
);

create index idempotency_keys_created_at on idempotency_keys (created_at);
