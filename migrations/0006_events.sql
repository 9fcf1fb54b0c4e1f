-- Events and the outbox. An event commits in the transaction of the change that it reports. Owner: src/events.

create sequence event_positions;

-- Returns the day of events that are written now: today (UTC). If the clock is so wrong that today has no partition, the latest
-- earlier day with one, or the first, so that no insert fails. A default partition would prevent DETACH PARTITION CONCURRENTLY, and
-- a backup that reads it would prevent new partitions.
create function event_day() returns date language plpgsql stable set search_path from current as $$
declare
  today date := (now() at time zone 'utc')::date;
begin
  if to_regclass('events_' || to_char(today, 'YYYYMMDD')) is not null then
    return today;
  end if;
  return (
    select coalesce(max(day) filter (where day <= today), min(day))
    from pg_inherits join pg_class on pg_class.oid = inhrelid, to_date(right(relname, 8), 'YYYYMMDD') as day
    where inhparent = 'events'::regclass and not inhdetachpending);
end $$;

create table events (
  -- The day of the event and of all rows derived from it, which retention deletes together.
  day date not null default event_day(),
  -- Identifies the event in the database. Deliveries refer to it.
  position bigint not null default nextval('event_positions'),
  -- A UUIDv7, or the id that the publisher chose.
  id text not null,
  -- Null for an event without an account, such as a ping.
  account_id uuid,
  kind text not null,
  -- The exact text that is signed and sent. Null after erasure.
  body text,
  created_at timestamptz not null default clock_timestamp(),
  -- The span that wrote the event, in the form of the header `traceparent` (W3C Trace Context). Deliveries continue its trace.
  -- Null without tracing.
  traceparent text,
  primary key (day, position)
) partition by range (day);

-- Returns the first position of a day whose event is not older than a time. The events of a day are almost ordered by time,
-- so a binary search on the primary key finds it.
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

-- Events without deliveries: one narrow row per transaction and account, which fan-out deletes. Fan-out finds new rows by the
-- transactions that its last snapshot did not see, so neither gaps in the ids nor the order of commits can make it miss a row, and
-- rows that are dead but not vacuumed yet cost it nothing.
create table outbox (
  id bigint generated always as identity,
  day date not null,
  positions bigint[] not null,
  -- Restricts the events to these lanes. Null for all lanes that may read them.
  lanes bigint[],
  -- Accounts take turns. The turn is the account of the events or, for events without an account, the first of their lanes.
  turn uuid not null default '00000000-0000-0000-0000-000000000001' check (turn > '00000000-0000-0000-0000-000000000000'),
  -- Number of events. Long arrays of positions are stored out of line, and need not be read to count them.
  size integer not null generated always as (cardinality(positions)) stored,
  -- The transaction that added the row.
  added_by xid8 not null default pg_current_xact_id(),
  -- An event for very many lanes is fanned out in slices. The first event of the row has deliveries in the lanes up to this one.
  through_lane bigint not null default 0,
  primary key (turn, id)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  -- Fan-out vacuums the table many times a minute. Each truncation would lock out all other sessions.
  vacuum_truncate = off
);

create index outbox_added_by on outbox (added_by);

-- A row lives for milliseconds. Compressing up to a thousand positions would take longer than writing the row.
alter table outbox alter column positions set storage external;

-- Events that fan-out cannot process. Parking them lets the others continue. Owner: src/webhooks/fan_out.
--   in the outbox → (a pass with only this event failed) → parked → (retried) → in the outbox
create table parked_events (
  position bigint primary key,
  day date not null,
  turn uuid not null,
  lanes bigint[],
  reason text not null,
  parked_at timestamptz not null default now()
);

-- Deliveries that fan-out set aside because another session had locked the row of their lane. They keep their order.
--   locked → set aside → (the lock is released) → delivery
create table deferred_deliveries (
  lane bigint not null,
  -- The event.
  position bigint not null,
  day date not null,
  primary key (lane, position)
);

-- Ids that publishers chose. Publishing the same id twice results in one event.
create table event_ids (
  id text primary key,
  -- SHA-256 of kind, account and body. The same id with different content is an error.
  content bytea not null,
  created_at timestamptz not null default now()
);

create index event_ids_created_at on event_ids using brin (created_at);
