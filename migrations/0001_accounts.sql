-- The users. Owner: src/accounts.

create table accounts (
  id uuid primary key,
  -- Lower case: one person, one account, however the address is typed.
  email text not null unique check (email = lower(email)),
  name text not null,
  -- PHC string; null for an account that signs in elsewhere.
  password_hash text,
  is_admin boolean not null default false,
  created_at timestamptz not null default now(),
  disabled_at timestamptz
);
