-- The database's clock as its nodes have seen it. Each heartbeat stores the time. A stored time in the future shows that the clock
-- went back. One statement then brings forward the times that were planned before and stores the new time, so this happens once,
-- whichever node does it. Owner: src/webhooks/lanes/clock_steps.ts.
create table database_clock (
  -- At most one row.
  id boolean primary key default true check (id),
  -- The time of the last heartbeat. Times that nodes planned are relative to the clock that showed this time.
  latest timestamptz not null,
  -- How often the clock went back.
  steps bigint not null default 0
) with (fillfactor = 50);

insert into database_clock (latest) values (clock_timestamp());
