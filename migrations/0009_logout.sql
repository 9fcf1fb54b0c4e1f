-- Back-channel logout notices (OpenID Connect Back-Channel Logout). Owner: src/oauth/logout.

create table logout_notices (
  id uuid primary key,
  client_id text not null references clients on delete cascade,
  account_id uuid not null references accounts on delete cascade,
  -- The session id that the app knows. Null if it knows none.
  session_id text,
  created_at timestamptz not null default now(),
  -- Time of the next attempt. While an attempt is in flight, the time at which another node may take over.
  due_at timestamptz not null default now(),
  attempts integer not null default 0,
  -- Result of the last attempt: the status of the response, or an error.
  last_error text,
  delivered_at timestamptz,
  given_up_at timestamptz
);

create index logout_notices_due on logout_notices (due_at) where delivered_at is null and given_up_at is null;
create index logout_notices_client on logout_notices (client_id);
create index logout_notices_account on logout_notices (account_id);
create index logout_notices_created on logout_notices (created_at);
