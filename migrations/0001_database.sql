-- Functions that all rooms use. Owner: src/database.
--
-- All objects of Nuncio are in one schema. Migrations run with this schema as the only one in the search path. Each function
-- keeps that search path (`set search_path from current`), so it finds Nuncio's tables regardless of the caller's settings.

-- Returns the key of an advisory lock. The key depends on the schema, because advisory locks belong to the whole database,
-- which Nuncio may share with another installation and with other applications.
create function lock_key(purpose text) returns bigint language sql stable set search_path from current as $$
  select hashtextextended(current_schema() || ' ' || purpose, 7236501127)
$$;

-- Creates the day partitions of a table, from yesterday to `days_ahead` days ahead. Large tables are partitioned by day, so that
-- retention drops whole partitions.
--
-- Each partition is first created as a table and then attached. `create table … partition of` would take an ACCESS EXCLUSIVE
-- lock on the parent: it waits for every reader, such as pg_dump, and every later statement waits for it. ATTACH PARTITION
-- takes a lock that does not conflict with readers and writers. If another session holds a conflicting lock, the function
-- fails after a short timeout, and the server calls it again later. (The server itself runs DETACH PARTITION … CONCURRENTLY,
-- which is not allowed in a function.)
--
-- A partition is written once, read for a few minutes and dropped as a whole. A vacuum triggered by inserts would only read and
-- write it again, so it is off. Dead rows (from erased bodies) and old transaction ids still trigger a vacuum. Statistics are
-- collected each time the partition doubles. The default, after each 10 % of growth, would read a partition of ten million
-- rows eighty times.
create function ensure_day_partitions(parent text, days_ahead integer) returns void
language plpgsql set search_path from current set lock_timeout = '200ms' as $$
declare
  today date := (now() at time zone 'utc')::date;
  day date;
  name text;
begin
  -- Only one caller at a time: two starting nodes would both create the partitions.
  perform pg_advisory_xact_lock(lock_key('partitions'));
  for offset_days in -1..days_ahead loop
    day := today + offset_days;
    name := parent || '_' || to_char(day, 'YYYYMMDD');
    if to_regclass(format('%I.%I', current_schema(), name)) is null then
      execute format('create table %I (like %I including all)', name, parent);
      execute format(
        'alter table %I set (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1,
          autovacuum_analyze_threshold = 1000)', name);
      execute format(
        'alter table %I attach partition %I for values from (%L) to (%L)', parent, name, day, day + 1);
    end if;
  end loop;
end $$;
