-- Webhooks: who wants to hear what, and what became of it. Owner: src/webhooks.

create table subscriptions (
  id uuid primary key,
  -- Names the lane, the queue of this subscription: 52 random bits. Part of the id of each delivery.
  lane bigint not null unique,
  owner text not null check (owner in ('grant', 'user', 'client')),
  grant_id uuid,
  -- The user whose events these are; null where the owner is a client.
  account_id uuid,
  client_id text,
  url text not null,
  kinds text[] not null,
  signature text not null,
  format text not null default 'json',
  ordered boolean not null default false,
  -- Attempts a second; null for no limit.
  rate_limit integer,
  description text not null default '',
  -- Seconds; null for the deployment's own.
  retry_schedule integer[],
  state text not null default 'active' check (state in ('active', 'disabled', 'ended')),
  disabled_reason text,
  -- Counts what was changed: an attempt says by which revision it was made.
  revision integer not null default 1,
  -- Sealed.
  secret bytea not null,
  previous_secret bytea,
  previous_secret_until timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  ended_at timestamptz,
  check ((owner = 'client') = (account_id is null)),
  check ((owner = 'grant') = (grant_id is not null)),
  check (owner = 'user' or client_id is not null)
);

create index subscriptions_of_account on subscriptions (account_id) where state <> 'ended';
create index subscriptions_of_grant on subscriptions (grant_id) where state <> 'ended';
create index subscriptions_of_client on subscriptions (client_id) where state <> 'ended';

-- The end of each lane where deliveries are added. Written by the fan-out alone (and by a test or replay of one
-- lane), so that it never waits for those who send.
create table lanes (
  id bigint primary key references subscriptions (lane) on delete cascade,
  -- The sequence of the next delivery.
  next_sequence bigint not null default 1
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

-- The end of each lane where deliveries are taken off. Written by the node that holds the lane alone.
--   idle (owner null, due_at null) → due (due_at) → held by a node (owner) → idle …
create table lane_progress (
  lane bigint primary key references subscriptions (lane) on delete cascade,
  -- Every delivery up to this sequence was attempted (what became of those that failed is in retries).
  cursor bigint not null default 0,
  -- The node that holds the lane; a node's id is new at each of its starts, so it is the fencing token as well.
  owner bigint,
  -- When a lane that nobody holds wants to be taken.
  due_at timestamptz,
  -- Nothing is to be sent before: the circuit is open, or the subscriber asked for it.
  paused_until timestamptz,
  -- Failures in a row, and since when.
  failures integer not null default 0,
  failing_since timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

create index lane_progress_due on lane_progress (due_at) where owner is null and due_at is not null;
create index lane_progress_owner on lane_progress (owner) where owner is not null;

-- The nodes that send. A node whose time is over has lost its lanes.
create table nodes (
  id bigint primary key,
  -- Where it runs and as what: whether it still lives can be looked up from the same place at once.
  host text not null,
  process text not null,
  alive_until timestamptz not null
);

-- One event for one subscription; never changed. Its state follows from attempts, retries and the lane's cursor.
-- Its id, a UUIDv8, is made of the lane and the sequence.
create table deliveries (
  day date not null,
  lane bigint not null,
  sequence bigint not null,
  -- events.position, of the same day.
  event bigint not null,
  created_at timestamptz not null default now(),
  primary key (lane, sequence, day)
) partition by range (day);

-- One POST of a delivery; never changed.
create table attempts (
  day date not null,
  lane bigint not null,
  sequence bigint not null,
  started_at timestamptz not null,
  number smallint not null,
  -- s: by the schedule, m: by hand, r: by a recovery
  trigger "char" not null,
  status smallint,
  truncated boolean not null,
  revision integer not null,
  duration_ms real not null,
  first_byte_ms real,
  error text,
  -- Of a new connection: what it took.
  connection text,
  headers text,
  body bytea
) partition by range (day);

create index attempts_of_delivery on attempts (lane, sequence);

-- Deliveries whose first attempt did not succeed, and those that somebody wants to be sent again. A success takes
-- the row away.
--   pending → (succeeded: no row) | failed;   held → pending;   cancelled
create table retries (
  lane bigint not null,
  sequence bigint not null,
  day date not null,
  state text not null check (state in ('pending', 'held', 'failed', 'succeeded', 'cancelled')),
  attempts smallint not null,
  -- When it is to be attempted; null for not at all.
  due_at timestamptz,
  -- How often it is still to be sent by hand.
  resends smallint not null default 0,
  primary key (lane, sequence)
);

create index retries_due on retries (lane, due_at) where due_at is not null;
create index retries_day on retries (day);

select ensure_day_partitions('deliveries', 7), ensure_day_partitions('attempts', 7);

-- Nodes keep what they need of a subscription in memory and are told here, at the commit, to look again.
create function notify_lane_changed(lane bigint) returns void language sql as $$
  select pg_notify('nuncio_lane_changed', lane::text)
$$;

create function subscription_changed() returns trigger language plpgsql as $$
begin
  perform notify_lane_changed(new.lane);
  return null;
end $$;

create trigger subscription_changed after update on subscriptions
  for each row execute function subscription_changed();

-- A subscription ends in the transaction that withdraws its grant, whoever withdraws it by whatever statement. A
-- client's own subscriptions go on, without the events of that account.
create function end_subscriptions_of_grant() returns trigger language plpgsql as $$
begin
  update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
  where grant_id = old.id and state <> 'ended';
  if exists (select from subscriptions where client_id = old.client_id and owner = 'client' and state <> 'ended') then
    perform pg_notify('nuncio_lane_changed', 'client:' || old.client_id);
  end if;
  return null;
end $$;

create trigger grant_withdrawn_ends_subscriptions after update of withdrawn_at on grants
  for each row when (old.withdrawn_at is null and new.withdrawn_at is not null)
  execute function end_subscriptions_of_grant();

create trigger grant_deleted_ends_subscriptions after delete on grants
  for each row execute function end_subscriptions_of_grant();

-- A grant that was narrowed: what waits in memory is looked at again.
create function review_subscriptions_of_grant() returns trigger language plpgsql as $$
begin
  perform notify_lane_changed(s.lane) from subscriptions s where s.grant_id = new.id and s.state <> 'ended';
  if exists (select from subscriptions where client_id = new.client_id and owner = 'client' and state <> 'ended') then
    perform pg_notify('nuncio_lane_changed', 'client:' || new.client_id);
  end if;
  return null;
end $$;

create trigger grant_scopes_changed after update of scopes on grants
  for each row when (old.scopes is distinct from new.scopes)
  execute function review_subscriptions_of_grant();

-- With an account go its subscriptions; while it is disabled they are, too.
create function account_of_subscriptions_changed() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
    where account_id = old.id and state <> 'ended';
    return null;
  end if;
  perform notify_lane_changed(s.lane) from subscriptions s where s.account_id = new.id and s.state <> 'ended';
  perform pg_notify('nuncio_lane_changed', 'client:' || g.client_id)
  from grants g where g.account_id = new.id and g.withdrawn_at is null
    and exists (select from subscriptions s where s.client_id = g.client_id and s.owner = 'client');
  return null;
end $$;

create trigger account_deleted_ends_subscriptions after delete on accounts
  for each row execute function account_of_subscriptions_changed();

create trigger account_disabled_stops_subscriptions after update of disabled_at on accounts
  for each row when ((old.disabled_at is null) <> (new.disabled_at is null))
  execute function account_of_subscriptions_changed();

create function client_of_subscriptions_changed() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
    where client_id = old.id and state <> 'ended';
    return null;
  end if;
  perform pg_notify('nuncio_lane_changed', 'client:' || new.id);
  return null;
end $$;

create trigger client_deleted_ends_subscriptions after delete on clients
  for each row execute function client_of_subscriptions_changed();

create trigger client_disabled_stops_subscriptions after update of disabled_at, may_subscribe on clients
  for each row when ((old.disabled_at is null, old.may_subscribe) is distinct from (new.disabled_at is null, new.may_subscribe))
  execute function client_of_subscriptions_changed();

-- Stretches of a lane that came while the subscription was disabled: nothing of them is sent without being asked for.
create table held_stretches (
  lane bigint not null references subscriptions (lane) on delete cascade,
  first bigint not null,
  last bigint not null,
  primary key (lane, first)
);
