-- Members, invitations and logos of apps. Owner: src/apps.

create table app_members (
  client_id text not null references clients on delete cascade,
  account_id uuid not null references accounts on delete cascade,
  role text not null check (role in ('owner', 'developer')),
  created_at timestamptz not null default now(),
  primary key (client_id, account_id)
);

create index app_members_of_account on app_members (account_id, client_id);

-- An invitation names an email address. It does not reveal whether an account with that address exists.
create table app_invitations (
  id uuid primary key,
  client_id text not null references clients on delete cascade,
  -- Lower case, as in accounts.
  email text not null,
  role text not null check (role in ('owner', 'developer')),
  invited_by uuid references accounts on delete set null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  unique (client_id, email)
);

create index app_invitations_of_email on app_invitations (email, id);

-- Logos that members upload.
create table app_logos (
  client_id text primary key references clients on delete cascade,
  -- SHA-256 of the app, the type and the content, in base64url. Two apps never share the URL of a logo.
  digest text not null unique check (length(digest) = 43),
  type text not null check (type in ('image/png', 'image/jpeg', 'image/webp')),
  content bytea not null check (octet_length(content) between 1 and 65536),
  created_at timestamptz not null default now()
);

-- The images are already compressed.
alter table app_logos alter column content set storage external;
