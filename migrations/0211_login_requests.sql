-- Sign-ins that are handed over to the application's own login page. Owner: src/accounts/login_request.ts.

create table login_requests (
  -- Of the id in the address of the application's page.
  digest bytea primary key,
  -- The authorization request that waits for it; null where the user wants their account page.
  interaction_uid text,
  client_id text,
  -- What the application is told of the request.
  question jsonb not null,
  -- Of the cookie of the browser that began it.
  browser_digest bytea not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  answered_at timestamptz,
  -- The machine client that answered.
  answered_by text,
  -- Of the secret in the address that the application sends the browser back to.
  verifier_digest bytea unique,
  -- Whom the application signed in; null where it refused.
  account_id uuid references accounts on delete cascade,
  answer jsonb,
  used_at timestamptz
);

create index login_requests_expiry on login_requests (expires_at);
create index login_requests_interaction on login_requests (interaction_uid) where interaction_uid is not null;
create index login_requests_account on login_requests (account_id) where account_id is not null;
