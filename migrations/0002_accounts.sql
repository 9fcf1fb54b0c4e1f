-- The users. Owner: src/accounts.

create table accounts (
  id uuid primary key,
  -- Lower case: one person has one account, however the address is typed. Null for an account that publishing created.
  email text check (email = lower(email)),
  -- Whether the address is the user's, according to whoever reported it. Null where nobody says.
  email_verified boolean,
  -- Empty where it is unknown.
  name text not null,
  -- The user id of the application beside this server, compared byte by byte. Null for a local account.
  external_id text collate "C" unique
    check (char_length(external_id) between 1 and 255 and external_id !~ '[\u0001-\u001f\u007f-\u009f]'),
  -- PHC string; null for an account that signs in elsewhere.
  password_hash text,
  is_admin boolean not null default false,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  disabled_at timestamptz,
  -- `application` for a machine client of the accounts API, which may enable the account again. Null for the operator, whose
  -- decision stands.
  disabled_by text check (disabled_by = 'application')
);

-- Local users sign in by their address. Addresses of external accounts are data: nobody signs in by them, and an external
-- account with the address of another account is not linked to it.
create unique index accounts_local_email on accounts (email) where external_id is null;
create index accounts_email on accounts (email) where email is not null;

-- The fan-out asks for each event whether its account is disabled. Hardly any is: this index is almost empty.
create index accounts_disabled on accounts (id) where disabled_at is not null;

-- For lists of the administration. The order is byte by byte, so that a prefix is a range. Accounts without an address come last.
create index accounts_by_email on accounts ((coalesce(email, chr(1114111))) collate "C", id);
create index accounts_disabled_by_email on accounts ((coalesce(email, chr(1114111))) collate "C", id)
  where disabled_at is not null;

-- Failed sign-ins, counted in windows. Owner: src/accounts/throttle.ts.
create table sign_in_failures (
  -- SHA-256 of what is counted: an e-mail address, a network address, or both together.
  subject bytea primary key,
  failures integer not null,
  window_ends_at timestamptz not null
);

create index sign_in_failures_window on sign_in_failures (window_ends_at);

-- Single-use URLs that sign a user in to the account page. The application creates them for its own users. A used link becomes
-- a session of that page alone. Owner: src/accounts/account_link.ts.
create table account_links (
  digest bytea primary key,
  account_id uuid not null references accounts on delete cascade,
  client_id text not null,
  return_to text,
  expires_at timestamptz not null,
  used_at timestamptz,
  -- Of the cookie of the browser that used it.
  session_digest bytea unique
);

create index account_links_expiry on account_links (expires_at);
create index account_links_account on account_links (account_id);

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
