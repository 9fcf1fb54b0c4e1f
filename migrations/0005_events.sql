-- The outbox: an event commits with the change that it tells of. Owner: src/events.

create table events (
  id uuid primary key,
  account_id uuid not null,
  kind text not null,
  -- The bytes that are sent, as text: what is signed is what is stored.
  body text not null,
  created_at timestamptz not null default now(),
  -- Order of fan-out.
  position bigint generated always as identity
);
