-- Connection traces: attempts of apps to connect, step by step. Kept for 7 days. Owner: src/connections/connection_store.ts.
create table connections (
  id uuid primary key,
  started_at timestamptz not null,
  updated_at timestamptz not null,
  -- As the app sent it, so it may be of no registered app. Null if the app sent none, or one that may be a secret.
  client_id text,
  is_known boolean not null,
  -- The user who signed in.
  account_id uuid references accounts on delete set null,
  grant_id uuid,
  outcome text not null check (outcome in ('open', 'connected', 'refused')),
  -- Digests of what later requests of the attempt can be recognized by.
  keys text[] not null,
  request_ids text[] not null,
  -- Keyed digest of the network address, to keep one sender from displacing others.
  source text not null,
  steps jsonb not null
) with (autovacuum_vacuum_scale_factor = 0.1);

create index connections_started on connections (started_at, id);
create index connections_of_client on connections (client_id, started_at, id);
create index connections_of_account on connections (account_id, started_at) where account_id is not null;
create index connections_keys on connections using gin (keys);
create index connections_requests on connections using gin (request_ids);
