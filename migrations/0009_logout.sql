-- Notices to apps that a user signed out (OpenID Connect Back-Channel Logout). Owner: src/oauth/logout.

create table logout_notices (
  id uuid primary key,
  client_id text not null references clients on delete cascade,
  account_id uuid not null references accounts on delete cascade,
  -- The session as the app knows it; null where it never heard of one.
  session_id text,
  created_at timestamptz not null default now(),
  -- Next attempt; while one is in flight, the time at which another node may take it over.
  due_at timestamptz not null default now(),
  attempts integer not null default 0,
  -- What the last attempt got: a status, or why there was none.
  last_error text,
  delivered_at timestamptz,
  given_up_at timestamptz
);

create index logout_notices_due on logout_notices (due_at) where delivered_at is null and given_up_at is null;
create index logout_notices_client on logout_notices (client_id);
create index logout_notices_account on logout_notices (account_id);
create index logout_notices_created on logout_notices (created_at);
