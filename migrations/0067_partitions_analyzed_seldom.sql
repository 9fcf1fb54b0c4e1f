-- A day's partition grows from nothing: collecting statistics of it anew after every tenth that came reads it some eighty
-- times until it has ten million rows, half a second each, and has every statement planned again. After each doubling is
-- enough: what is in it stays alike.
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
        'create table %I partition of %I for values from (%L) to (%L)
          with (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1,
            autovacuum_analyze_threshold = 1000)',
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
    execute format(
      'alter table %I set (autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 1000)', name);
  end loop;
end $$;
