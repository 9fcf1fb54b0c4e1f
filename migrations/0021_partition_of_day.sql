-- Partitions of single days. Deliveries and attempts have the day of their event. When the database's clock was ahead and was set
-- right, that day is ahead of all partitions that are created for the coming days. Owner: src/database.

-- Creates the partition of one day, as a table that is then attached (see `ensure_day_partitions` in 0001_database.sql).
create function ensure_day_partition(parent text, day date) returns void
language plpgsql set search_path from current set lock_timeout = '200ms' as $$
declare
  name text := parent || '_' || to_char(day, 'YYYYMMDD');
begin
  -- Only one caller at a time: two nodes would both create the partition.
  perform pg_advisory_xact_lock(lock_key('partitions'));
  if to_regclass(format('%I.%I', current_schema(), name)) is null then
    execute format('create table %I (like %I including all)', name, parent);
    execute format(
      'alter table %I set (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1,
        autovacuum_analyze_threshold = 1000)', name);
    execute format(
      'alter table %I attach partition %I for values from (%L) to (%L)', parent, name, day, day + 1);
  end if;
end $$;

create or replace function ensure_day_partitions(parent text, days_ahead integer) returns void
language plpgsql set search_path from current set lock_timeout = '200ms' as $$
declare
  today date := (now() at time zone 'utc')::date;
begin
  perform ensure_day_partition(parent, today + offset_days) from generate_series(-1, days_ahead) as offset_days;
end $$;
