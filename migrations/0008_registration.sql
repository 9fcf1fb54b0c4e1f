-- Apps that register themselves. Owner: src/oauth/registration.

-- RFC 7592 section 3: the token by which an app reads and changes its own registration. Stored as digests.
create table registration_access_tokens (
  digest bytea primary key,
  client_id text not null references clients on delete cascade,
  payload jsonb not null,
  created_at timestamptz not null default now()
);

create index registration_access_tokens_client on registration_access_tokens (client_id);

-- RFC 7591 section 3: the token that the operator gives to those who may register apps. Stored as digests.
create table initial_access_tokens (
  digest bytea primary key,
  -- For whom it was made, in the operator's words.
  note text not null default '',
  -- Registrations that it is still good for; null where they are not counted.
  uses_left integer check (uses_left >= 0),
  created_at timestamptz not null default now(),
  expires_at timestamptz
);

-- Registrations of each network address and of all together, counted in windows.
create table registration_windows (
  subject bytea primary key,
  registrations integer not null,
  ends_at timestamptz not null
);

create index registration_windows_end on registration_windows (ends_at);
