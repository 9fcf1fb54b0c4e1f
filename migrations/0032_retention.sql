-- What is kept for some days leaves by dropping the partitions of the days that are over.
create function drop_day_partitions(parent text, days_kept integer) returns integer language plpgsql as $$
declare
  oldest date := (now() at time zone 'utc')::date - days_kept;
  name text;
  count integer := 0;
begin
  for name in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = parent::regclass and c.relname ~ ('^' || parent || '_\d{8}$')
      and to_date(right(c.relname, 8), 'YYYYMMDD') < oldest
  loop
    execute format('drop table %I', name);
    count := count + 1;
  end loop;
  return count;
end $$;

-- Recoveries: deliveries of a stretch of time that are to be sent again, some at a time.
--   running → done | cancelled
create table recoveries (
  id uuid primary key,
  lane bigint not null references subscriptions (lane) on delete cascade,
  since timestamptz not null,
  until timestamptz not null,
  states text[] not null,
  state text not null default 'running' check (state in ('running', 'done', 'cancelled')),
  -- The last sequence that was looked at, and how many deliveries were found to be sent again.
  position bigint not null default 0,
  resent bigint not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

create index recoveries_running on recoveries (created_at) where state = 'running';
create index recoveries_of_lane on recoveries (lane);
