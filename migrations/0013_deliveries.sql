-- The delivery log. Owner: src/webhooks/log.

-- One event for one subscription. Rows never change. The state of a delivery is derived from attempts, retries and the lane's
-- cursor. Its id is a UUIDv8 made from the lane and the sequence.
create table deliveries (
  day date not null,
  lane bigint not null,
  sequence bigint not null,
  -- events.position, of the same day.
  event bigint not null,
  created_at timestamptz not null default now(),
  -- True if a recovery made it for an event from before the subscription. Null, which takes no space, for all others.
  replayed boolean,
  primary key (lane, sequence, day)
) partition by range (day);

-- The events that recoveries have added to a lane. No recovery adds one again, and none reads the other deliveries of the lane.
create unique index deliveries_replayed on deliveries (lane, event, day) where replayed;

-- One POST of a delivery. Rows never change.
create table attempts (
  day date not null,
  lane bigint not null,
  sequence bigint not null,
  started_at timestamptz not null,
  number smallint not null,
  -- s: schedule, m: manual resend, r: recovery
  trigger "char" not null,
  status smallint,
  truncated boolean not null,
  revision integer not null,
  duration_ms real not null,
  first_byte_ms real,
  error text,
  -- Timings of opening a new connection.
  connection text,
  headers text,
  body bytea,
  -- Whether headers and body of the response were omitted because the daily budget was exhausted.
  response_omitted boolean
) partition by range (day);

create index attempts_of_delivery on attempts (lane, sequence);

select ensure_day_partitions(7);

-- Deliveries whose first attempt did not succeed, and deliveries to resend. A success deletes the row.
--   pending → (succeeded: no row) | failed;   held → pending;   cancelled
create table retries (
  lane bigint not null,
  sequence bigint not null,
  day date not null,
  state text not null check (state in ('pending', 'held', 'failed', 'succeeded', 'cancelled')),
  attempts smallint not null,
  -- Time of the next attempt. Null for none.
  due_at timestamptz,
  -- Remaining manual resends.
  resends smallint not null default 0,
  primary key (lane, sequence)
);

create index retries_due on retries (lane, due_at) where due_at is not null;
create index retries_day on retries (day);
-- For lists and counts by state. Failed retries stay as long as the log, so there may be many.
create index retries_of_state on retries (lane, state, sequence);

-- Recoveries: jobs that resend the deliveries of a time range in batches. Owner: src/webhooks/fan_out/recovery.ts.
--   running → done | cancelled
create table recoveries (
  id uuid primary key,
  lane bigint not null references subscriptions (lane) on delete cascade,
  since timestamptz not null,
  until timestamptz not null,
  states text[] not null,
  state text not null default 'running' check (state in ('running', 'done', 'cancelled')),
  -- The last processed sequence, and the number of resent deliveries.
  position bigint not null default 0,
  resent bigint not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- resending (through the lane's deliveries) → missing (through events from before the subscription) → done
  phase text not null default 'resending' check (phase in ('resending', 'missing')),
  -- The last processed event: its day and position.
  missing_day date,
  missing_position bigint not null default 0,
  -- Deliveries created for events from before the subscription.
  added bigint not null default 0,
  -- Recoveries take turns by account, or by client for its own subscriptions.
  turn text not null default '-'
);

create index recoveries_running on recoveries (turn, updated_at) where state = 'running';
create index recoveries_of_lane on recoveries (lane);

-- Outcomes of deliveries, counted by subscription and time, so that charts do not read the log. Owner:
-- src/webhooks/log/delivery_stats.ts.
create table delivery_stats (
  -- 0 for the total of all subscriptions.
  lane bigint not null,
  -- Length of the bucket: 300 or 3600.
  seconds integer not null,
  bucket timestamptz not null,
  -- In the order of src/webhooks/log/delivery_stats.ts: outcomes, latencies, classes of errors.
  counts bigint[] not null,
  primary key (lane, seconds, bucket)
) with (fillfactor = 70);

create index delivery_stats_age on delivery_stats (seconds, bucket);

create function add_counts(a bigint[], b bigint[]) returns bigint[]
language sql immutable parallel safe set search_path from current as $$
  select array_agg(coalesce(x, 0) + coalesce(y, 0) order by position)
  from unnest(a, b) with ordinality as t (x, y, position)
$$;
