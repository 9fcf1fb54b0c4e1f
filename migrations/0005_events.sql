-- The outbox: an event commits with the change that it tells of. Owner: src/events.

-- What grows is divided by day and leaves by dropping a day's partition. Partitions are made ahead of time.
create function ensure_day_partitions(parent text, days_ahead integer) returns void language plpgsql as $$
declare
  today date := (now() at time zone 'utc')::date;
  day date;
  name text;
begin
  -- One at a time: two nodes that start together would both try.
  perform pg_advisory_xact_lock(7236501128);
  for offset_days in -1..days_ahead loop
    day := today + offset_days;
    name := parent || '_' || to_char(day, 'YYYYMMDD');
    if to_regclass(name) is null then
      execute format('create table %I partition of %I for values from (%L) to (%L)', name, parent, day, day + 1);
    end if;
  end loop;
end $$;

create sequence event_positions;

create table events (
  -- The day (UTC) of the event, and of everything that comes of it: they leave together.
  day date not null default (now() at time zone 'utc')::date,
  -- Names the event within the database; what deliveries refer to.
  position bigint not null default nextval('event_positions'),
  -- A UUIDv7 made here, or what the publisher called it.
  id text not null,
  -- Null for what tells of no account, like a ping.
  account_id uuid,
  kind text not null,
  -- The bytes that are sent, as text: what is signed is what is stored. Null once it was erased.
  body text,
  created_at timestamptz not null default clock_timestamp(),
  primary key (day, position)
) partition by range (day);

-- Which events nobody has made deliveries of yet: one narrow row for each transaction that wrote some, taken away
-- by the fan-out. No gap and no order of commits can make it miss one.
create table outbox (
  id bigint generated always as identity primary key,
  day date not null default (now() at time zone 'utc')::date,
  positions bigint[] not null,
  -- Lanes that alone may get them; null for everyone who may read them.
  lanes bigint[]
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Ids that publishers chose: the same id twice is one event.
create table event_ids (
  id text primary key,
  -- SHA-256 of kind, account and body: the same id with another content is a mistake.
  content bytea not null,
  created_at timestamptz not null default now()
);

create index event_ids_created_at on event_ids using brin (created_at);

select ensure_day_partitions('events', 7);
