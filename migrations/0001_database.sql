-- What every part uses. Owner: src/database.
--
-- Everything of Nuncio is in one schema, which migrations meet as the only one in their search path. Each function carries
-- that path (`set search_path from current`), so it finds Nuncio's own tables whoever calls it, in whatever session.

-- Key of an advisory lock. Such locks belong to the whole database, which Nuncio may share with another installation and
-- with other applications.
create function lock_key(purpose text) returns bigint language sql stable set search_path from current as $$
  select hashtextextended(current_schema() || ' ' || purpose, 7236501127)
$$;

-- Makes the day partitions of a table, from yesterday to `days_ahead` days ahead. Tables that grow are partitioned by day,
-- and a day leaves when its partition is dropped.
--
-- A partition is created apart and then attached: `create table … partition of` takes an ACCESS EXCLUSIVE lock on the parent,
-- which queues behind every reader, such as pg_dump, and every statement queues behind it. ATTACH PARTITION takes a lock that
-- readers and writers do not conflict with. Where somebody holds a conflicting lock the function fails soon and is called
-- again later. (DETACH PARTITION … CONCURRENTLY cannot run inside a function: the server runs it.)
--
-- A partition is written once, read for a few minutes and dropped whole. A vacuum because of inserts would only read and
-- write it a second time; dead rows, which an erased body leaves, and old transaction ids still start one. Statistics are
-- collected after each doubling: the default, after every tenth, reads a partition of ten million rows eighty times.
create function ensure_day_partitions(parent text, days_ahead integer) returns void
language plpgsql set search_path from current set lock_timeout = '200ms' as $$
declare
  today date := (now() at time zone 'utc')::date;
  day date;
  name text;
begin
  -- One caller at a time: two nodes that start together would both create them.
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
