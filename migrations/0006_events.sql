-- Events and the outbox: an event commits with the change that it tells of. Owner: src/events.

create sequence event_positions;

create table events (
  -- The day (UTC) of the event, and of everything that comes of it: they leave together.
  day date not null default (now() at time zone 'utc')::date,
  -- Names the event within the database; deliveries refer to it.
  position bigint not null default nextval('event_positions'),
  -- A UUIDv7 made here, or the id that the publisher chose.
  id text not null,
  -- Null for an event that belongs to no account, like a ping.
  account_id uuid,
  kind text not null,
  -- The bytes that are sent, as text: what is signed is what is stored. Null once it was erased.
  body text,
  created_at timestamptz not null default clock_timestamp(),
  -- Of the span in which the event was written, as in the header `traceparent` (W3C Trace Context): its deliveries belong to
  -- the same trace. Null where nothing is traced.
  traceparent text,
  primary key (day, position)
) partition by range (day);

select ensure_day_partitions('events', 7);

-- The first position of a day whose event is not older than a time. Events of a day come almost in the order of their time,
-- so a binary search of the primary key finds it.
create function event_position_at(wanted_day date, wanted timestamptz) returns bigint
language plpgsql stable set search_path from current as $$
declare
  low bigint;
  high bigint;
  middle bigint;
  found_at timestamptz;
begin
  select min(position), max(position) + 1 into low, high from events where day = wanted_day;
  while low < high loop
    middle := (low + high) / 2;
    select created_at into found_at from events
    where day = wanted_day and position >= middle order by position limit 1;
    if found_at is null or found_at >= wanted then high := middle; else low := middle + 1; end if;
  end loop;
  return low;
end $$;

-- Events that have no deliveries yet: one narrow row for each transaction and account, which the fan-out deletes. Neither a
-- gap in the numbers nor an order of commits can make it miss one.
create table outbox (
  id bigint generated always as identity,
  day date not null default (now() at time zone 'utc')::date,
  positions bigint[] not null,
  -- Only these lanes may get the events; null for every lane that may read them.
  lanes bigint[],
  -- Accounts take turns: the account of the events, or, where they belong to no account, the first of their lanes. The
  -- fan-out looks turns up one after the other, from zero on, and takes the oldest rows of each.
  turn uuid not null default '00000000-0000-0000-0000-000000000001' check (turn > '00000000-0000-0000-0000-000000000000'),
  -- How many events the row has. Positions of a batch are stored apart, and need not be read for it.
  size integer not null generated always as (cardinality(positions)) stored,
  primary key (turn, id)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  -- The fan-out itself vacuums the table many times a minute. Truncating it would lock everybody out each time.
  vacuum_truncate = off
);

-- A row lives for milliseconds and holds up to a thousand positions: compressing them takes longer than writing the row.
alter table outbox alter column positions set storage external;

-- Events that the fan-out failed on, each set aside so that the others go on. Owner: src/webhooks/fan_out.
--   in the outbox → (a pass with this event alone failed) → parked → (retried) → in the outbox
create table parked_events (
  position bigint primary key,
  day date not null,
  turn uuid not null,
  lanes bigint[],
  reason text not null,
  parked_at timestamptz not null default now()
);

-- Ids that publishers chose: the same id twice is one event.
create table event_ids (
  id text primary key,
  -- SHA-256 of kind, account and body: the same id with other content is a mistake.
  content bytea not null,
  created_at timestamptz not null default now()
);

create index event_ids_created_at on event_ids using brin (created_at);
