-- Turns are looked for after one another: the first one is greater than zero.
update outbox set turn = '00000000-0000-0000-0000-000000000001' where turn = '00000000-0000-0000-0000-000000000000';
alter table outbox alter column turn set default '00000000-0000-0000-0000-000000000001';

-- The fan-out takes the outbox by turns: a look-up of one account after the other, and of the oldest rows of each.
alter table outbox
  drop constraint outbox_pkey,
  add primary key (turn, id),
  add check (turn > '00000000-0000-0000-0000-000000000000'),
  -- How many events a row has. Positions need not be read for it: those of a batch are stored apart.
  add column size integer not null generated always as (cardinality(positions)) stored,
  -- The fan-out vacuums the table itself, many times a minute. To cut off its end would lock everybody out each time.
  set (vacuum_truncate = off);

-- Events that the fan-out could not make deliveries of, each set aside so that the others go on.
--   in the outbox → (a pass with this event alone failed) → parked → (retried) → in the outbox
create table parked_events (
  position bigint primary key,
  day date not null,
  turn uuid not null,
  lanes bigint[],
  reason text not null,
  parked_at timestamptz not null default now()
);

-- Recoveries take turns by account, too. Those that a node of an earlier version starts share a turn.
alter table recoveries add column turn text not null default '-';
update recoveries set turn = coalesce(s.account_id::text, s.client_id)
from subscriptions s where s.lane = recoveries.lane and recoveries.state = 'running';
drop index recoveries_running;
create index recoveries_running on recoveries (turn, updated_at) where state = 'running';
