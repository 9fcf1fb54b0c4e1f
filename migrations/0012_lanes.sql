-- Lanes (the queue of each subscription) and the nodes that send from them. Owner: src/webhooks/lanes.

-- The end of each lane where deliveries are added. Only the fan-out writes it (and a test or a replay of one lane), so that it
-- never waits for those who send.
create table lanes (
  id bigint primary key references subscriptions (lane) on delete cascade,
  -- The sequence of the next delivery.
  next_sequence bigint not null default 1
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

-- The end of each lane where deliveries are taken off. Only the node that holds the lane's lease writes it.
--   idle (owner null, due_at null) → due (due_at) → leased by a node (owner) → idle …
create table lane_progress (
  lane bigint primary key references subscriptions (lane) on delete cascade,
  -- Every delivery up to this sequence was attempted. Those that did not succeed are in retries.
  cursor bigint not null default 0,
  -- The node that holds the lease. A node has a new id at each start, so the id is the fencing token as well.
  -- It has no index: the planner took an owner for rare and read all lanes of a node for the few that were named.
  owner bigint,
  -- When a lane without a lease wants to be leased.
  due_at timestamptz,
  -- Nothing is sent before: the circuit is open, or the subscriber asked for it.
  paused_until timestamptz,
  -- Failures in a row, and since when.
  failures integer not null default 0,
  failing_since timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

create index lane_progress_due on lane_progress (due_at) where owner is null and due_at is not null;

-- Stretches of a lane that came while the subscription was disabled: they are sent only on request.
create table held_stretches (
  lane bigint not null references subscriptions (lane) on delete cascade,
  first bigint not null,
  last bigint not null,
  primary key (lane, first)
);

-- The nodes that send. A node whose time is over has lost its leases. Owner: src/webhooks/lanes/node.ts.
create table nodes (
  id bigint primary key,
  -- Where it runs and as what: a node in the same place can tell at once whether it still runs.
  host text not null,
  process text not null,
  alive_until timestamptz not null,
  -- A running node reads the database every second and counts that here. Other nodes judge by this counter and their own
  -- clocks, not by the time of day. 0 for a node that does not count.
  looks bigint not null default 0,
  -- As the operator named it (NUNCIO_NODE_NAME); null where they did not.
  name text
);

-- Bytes of responses that attempts have stored, by account (or app, for its own subscriptions) and day. Past a daily budget
-- attempts are stored without them. Owner: src/webhooks/lanes/attempt_budget.ts.
create table attempt_bytes (
  day date not null,
  -- An account's id, or client:<id>.
  tenant text not null,
  bytes bigint not null,
  primary key (day, tenant)
);
