-- Accounts. Owner: src/accounts.

create table accounts (
  id uuid primary key,
  -- Lower case, so that spelling variants of an address name the same account. Null for an account that publishing created.
  email text check (email = lower(email)),
  -- Whether the source of the address says that it is verified. Null if it does not say.
  email_verified boolean,
  -- Empty if unknown.
  name text not null,
  -- The user id in the existing application, compared byte by byte. Null for a local account.
  external_id text collate "C" unique
    check (char_length(external_id) between 1 and 255 and external_id !~ '[\u0001-\u001f\u007f-\u009f]'),
  -- PHC string. Null for an account without a local password.
  password_hash text,
  is_admin boolean not null default false,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  disabled_at timestamptz,
  -- `application` if a machine client of the accounts API disabled the account; such a client may enable it again. Null if the
  -- operator did.
  disabled_by text check (disabled_by = 'application'),
  -- Counts how often all sessions of the account were ended. A sign-in that began before the last time is no longer valid.
  sign_in_epoch integer not null default 0
);

-- Local users sign in with their address, so it is unique among local accounts. The address of an external account is only
-- data: it is not used to sign in, and does not link the account to another with the same address.
create unique index accounts_local_email on accounts (email) where external_id is null;
create index accounts_email on accounts (email) where email is not null;

-- Fan-out checks for each event whether its account is disabled. Few accounts are, so this index is almost empty.
create index accounts_disabled on accounts (id) where disabled_at is not null;

-- For lists of accounts under /admin. The order is byte by byte, so that a prefix is a range. Accounts without an address sort
-- last.
create index accounts_by_email on accounts ((coalesce(email, chr(1114111))) collate "C", id);
create index accounts_disabled_by_email on accounts ((coalesce(email, chr(1114111))) collate "C", id)
  where disabled_at is not null;

-- Ids of deleted accounts. An application that still publishes for one of them must not create an account with that name.
create table deleted_accounts (
  id uuid primary key,
  deleted_at timestamptz not null default now()
);

create function keep_deleted_account() returns trigger language plpgsql set search_path from current as $$
begin
  insert into deleted_accounts (id) values (old.id) on conflict do nothing;
  return null;
end $$;

create trigger account_deleted_is_kept after delete on accounts
  for each row execute function keep_deleted_account();

-- Failed sign-ins per time window. Owner: src/accounts/throttle.ts.
create table sign_in_failures (
  -- SHA-256 of an email address, a network address, or both together.
  subject bytea primary key,
  failures integer not null,
  window_ends_at timestamptz not null
);

create index sign_in_failures_window on sign_in_failures (window_ends_at);

-- Single-use URLs that sign a user in to the account page. The application creates them for its own users. Using a link starts a
-- session that is valid for that page only. Owner: src/accounts/account_link.ts.
create table account_links (
  digest bytea primary key,
  account_id uuid not null references accounts on delete cascade,
  client_id text not null,
  return_to text,
  expires_at timestamptz not null,
  used_at timestamptz,
  -- Digest of the cookie of the browser that used the link.
  session_digest bytea unique
);

create index account_links_expiry on account_links (expires_at);
create index account_links_account on account_links (account_id);

-- Sign-ins on the application's own login page. Owner: src/accounts/login_request.ts.
create table login_requests (
  -- Digest of the id in the URL of the login page.
  digest bytea primary key,
  -- The waiting authorization request. Null if the user signs in to the account page.
  interaction_uid text,
  client_id text,
  -- The description of the request for the application.
  parameters jsonb not null,
  -- Digest of the cookie of the browser that started the sign-in.
  browser_digest bytea not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  answered_at timestamptz,
  -- The machine client that answered.
  answered_by text,
  -- Digest of the secret in the URL to which the application redirects the browser.
  verifier_digest bytea unique,
  -- The account that signed in. Null if the application rejected the sign-in.
  account_id uuid references accounts on delete cascade,
  -- How the user signed in, or the error.
  result jsonb,
  used_at timestamptz
);

create index login_requests_expiry on login_requests (expires_at);
create index login_requests_interaction on login_requests (interaction_uid) where interaction_uid is not null;
create index login_requests_account on login_requests (account_id) where account_id is not null;
