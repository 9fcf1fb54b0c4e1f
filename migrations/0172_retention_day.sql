-- The day that retention takes for today. It follows the database's clock by one day with each run at most, so that a clock
-- that is wrong for a while deletes next to nothing. Owner: src/webhooks/log/retention.ts.
create table retention_day (
  is_only boolean primary key default true check (is_only),
  day date not null
);

insert into retention_day (day) values ((now() at time zone 'utc')::date);
