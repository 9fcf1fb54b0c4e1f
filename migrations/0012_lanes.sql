-- Lanes (the queue of each subscription) and the nodes that send from them. Owner: src/webhooks/lanes.

-- The tail of each lane, where deliveries are added. Only fan-out, test deliveries and replays write this table, so they never
-- wait for the nodes that send.
create table lanes (
  id bigint primary key references subscriptions (lane) on delete cascade,
  -- The sequence of the next delivery.
  next_sequence bigint not null default 1
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

-- The head of each lane, where deliveries are taken. Only the node that holds the lane's lease writes this table.
--   idle (owner null, due_at null) → due (due_at) → leased by a node (owner) → idle …
create table lane_progress (
  lane bigint primary key references subscriptions (lane) on delete cascade,
  -- All deliveries up to this sequence were attempted. Those that did not succeed are in retries.
  cursor bigint not null default 0,
  -- The node that holds the lease. A node gets a new id at each start, so the id also serves as the fencing token.
  -- The column has no index: with one, the planner read all lanes of a node to find the few that a statement named.
  owner bigint,
  -- Time from which a lane without a lease should be leased.
  due_at timestamptz,
  -- No attempt starts before this time: the circuit is open, or the subscriber sent Retry-After.
  paused_until timestamptz,
  -- Consecutive failures, and the time of the first.
  failures integer not null default 0,
  failing_since timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

create index lane_progress_due on lane_progress (due_at) where owner is null and due_at is not null;

-- Ranges of deliveries that were added while the subscription was disabled. They are sent only on request.
create table held_ranges (
  lane bigint not null references subscriptions (lane) on delete cascade,
  first bigint not null,
  last bigint not null,
  primary key (lane, first)
);

-- Nodes that send deliveries. A node loses its leases when it stops refreshing its row. Owner: src/webhooks/lanes/node.ts.
create table nodes (
  id bigint primary key,
  -- The host and the process of the node. A node on the same host can check whether that process still runs.
  host text not null,
  process text not null,
  alive_until timestamptz not null,
  -- A running node reads the database every second and increments this counter. Other nodes compare the counter with their own
  -- monotonic clocks, not with the time of day.
  heartbeats bigint not null default 0,
  -- NUNCIO_NODE_NAME, or null. One running node has each name (src/webhooks/lanes/node_name.ts).
  name text,
  -- The heartbeat counter at which another node found this one silent: a node without a heartbeat for some seconds starts nothing until
  -- it reads the database again. The node is silent while its counter still has this value, so a withdrawal need not wait to observe
  -- it by itself.
  silent_heartbeats bigint,
  -- The epoch of that observation. After a failover, a counter can have an earlier value again.
  silent_epoch uuid
);

create unique index nodes_name on nodes (name);

-- Bytes of responses stored with attempts, per tenant (an account, or an app for its own subscriptions) and day. Above a daily
-- budget, attempts are stored without responses. Owner: src/webhooks/lanes/attempt_budget.ts.
create table attempt_bytes (
  day date not null,
  -- An account's id, or client:<id>.
  tenant text not null,
  bytes bigint not null,
  primary key (day, tenant)
);
