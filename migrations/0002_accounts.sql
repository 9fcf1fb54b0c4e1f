-- The users. Owner: src/accounts.

create table accounts (
  id uuid primary key,
  -- Lower case: one person has one account, however the address is typed.
  email text not null unique check (email = lower(email)),
  name text not null,
  -- PHC string; null for an account that signs in elsewhere.
  password_hash text,
  is_admin boolean not null default false,
  created_at timestamptz not null default now(),
  disabled_at timestamptz
);

-- The fan-out asks for each event whether its account is disabled. Hardly any is: this index is almost empty.
create index accounts_disabled on accounts (id) where disabled_at is not null;

-- For lists of the administration. The order is byte by byte, so that a prefix is a range.
create index accounts_by_email on accounts (email collate "C");
create index accounts_disabled_by_email on accounts (email collate "C") where disabled_at is not null;

-- Failed sign-ins, counted in windows. Owner: src/accounts/throttle.ts.
create table sign_in_failures (
  -- SHA-256 of what is counted: an e-mail address, a network address, or both together.
  subject bytea primary key,
  failures integer not null,
  window_ends_at timestamptz not null
);

create index sign_in_failures_window on sign_in_failures (window_ends_at);
