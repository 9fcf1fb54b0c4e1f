-- What is divided by day is written once, read for a few minutes and dropped whole: to vacuum it because much was
-- inserted would read and write all of it a second time for nothing. Dead rows, which an erased body leaves, and the
-- age of transactions still bring the vacuum.
create or replace function ensure_day_partitions(parent text, days_ahead integer) returns void language plpgsql as $$
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
      execute format(
        'create table %I partition of %I for values from (%L) to (%L) with (autovacuum_vacuum_insert_threshold = -1)',
        name, parent, day, day + 1);
    end if;
  end loop;
end $$;

do $$
declare
  name text;
begin
  for name in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('events'::regclass, 'deliveries'::regclass, 'attempts'::regclass)
  loop
    execute format('alter table %I set (autovacuum_vacuum_insert_threshold = -1)', name);
  end loop;
end $$;
