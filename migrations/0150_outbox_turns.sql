-- The outbox has one row for each transaction and account, so that accounts can take turns. Rows that a node of an earlier
-- version writes have no turn of their own: they share one.
alter table outbox
  -- The account of the events; the first lane where events that belong to no account are for certain lanes.
  add column turn uuid not null default '00000000-0000-0000-0000-000000000000';

-- What waits is split by account. The new rows follow the order of the old ones, and everything that comes later follows them.
with waiting as (
  delete from outbox where lanes is null returning id, day, positions
)
insert into outbox (day, turn, positions)
select day, turn, positions
from (
  select waiting.id, waiting.day, e.account_id as turn, array_agg(e.position order by e.position) as positions
  from waiting
  cross join unnest(waiting.positions) as each (position)
  join events e on e.day = waiting.day and e.position = each.position
  where e.account_id is not null
  group by waiting.id, waiting.day, e.account_id
) as split
order by id;
