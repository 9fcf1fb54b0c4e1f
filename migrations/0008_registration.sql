-- Dynamic client registration. Owner: src/oauth/registration.

-- RFC 7592 section 3: tokens with which an app reads and changes its own registration. Stored as digests.
create table registration_access_tokens (
  digest bytea primary key,
  client_id text not null references clients on delete cascade,
  payload jsonb not null,
  created_at timestamptz not null default now()
);

create index registration_access_tokens_client on registration_access_tokens (client_id);

-- RFC 7591 section 3: tokens that allow their holders to register apps. Created by the operator, stored as digests.
create table initial_access_tokens (
  digest bytea primary key,
  -- The operator's note about the recipient.
  note text not null default '',
  -- Remaining registrations. Null for no limit.
  uses_left integer check (uses_left >= 0),
  created_at timestamptz not null default now(),
  expires_at timestamptz
);

-- Registrations per time window, for each network address and in total.
create table registration_windows (
  subject bytea primary key,
  registrations integer not null,
  ends_at timestamptz not null
);

create index registration_windows_end on registration_windows (ends_at);
