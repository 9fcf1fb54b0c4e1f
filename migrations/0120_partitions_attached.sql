-- A partition is created apart and then attached. `create table … partition of` takes an ACCESS EXCLUSIVE lock on the
-- parent: it queues behind every reader, such as pg_dump, and every statement queues behind it. ATTACH PARTITION takes a
-- lock that readers and writers do not conflict with. Whoever holds a conflicting lock makes this fail soon; the caller
-- tries again.
create or replace function ensure_day_partitions(parent text, days_ahead integer) returns void
language plpgsql set lock_timeout = '200ms' as $$
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
      execute format('create table %I (like %I including all)', name, parent);
      execute format(
        'alter table %I set (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1,
          autovacuum_analyze_threshold = 1000)', name);
      execute format(
        'alter table %I attach partition %I for values from (%L) to (%L)', parent, name, day, day + 1);
    end if;
  end loop;
end $$;

-- DETACH PARTITION … CONCURRENTLY cannot run inside a function: the server runs it.
drop function drop_day_partitions(text, integer);
