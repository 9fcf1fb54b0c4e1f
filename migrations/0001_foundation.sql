-- What all rooms use: locks, leases, notifications and partitions. Owner: src/database.
--
-- All objects of Nuncio are in one schema. Migrations run with this schema as the only one in the search path. Each function
-- keeps that search path (`set search_path from current`), so it finds Nuncio's tables regardless of the caller's settings.
--
-- Advisory locks and NOTIFY need no privilege: any role that may connect to the database can hold any advisory lock and send on any
-- channel. The rows of these tables can only be locked by roles that may write the tables.

-- Leases that one node at a time holds (src/database/lease.ts).
create table leases (
  name text primary key,
  -- Null if it was released.
  holder text,
  -- Grows with each holder. A statement that acts for the holder names it, and does nothing if it has grown.
  fence bigint not null default 0,
  expires_at timestamptz not null default '-infinity'
) with (fillfactor = 50);

insert into leases (name) values ('fan-out'), ('intake'), ('drop partitions');

-- Has no rows outside of a running transaction.
create unlogged table locks (key bigint primary key);

-- Takes a lock until the end of the transaction: waits for every other transaction that has taken it. A transaction that inserts a
-- key waits for another one that has inserted it and is not over, whether or not that one has deleted it again.
create function take_lock(purpose text) returns void language plpgsql set search_path from current as $$
begin
  insert into locks (key) values (hashtextextended(purpose, 0));
  delete from locks where key = hashtextextended(purpose, 0);
end $$;

-- Hashes of idempotency keys are the keys of advisory locks (src/http/idempotency.ts). Nobody can predict them without the salt.
create table lock_salt (salt text not null);

insert into lock_salt values (gen_random_uuid()::text || gen_random_uuid()::text);

-- Sends a notification at commit, unless PostgreSQL's queue is half full: when it is full, commits with a notification fail. Any
-- session can fill it by listening within a long transaction. Nodes notice before that and read the database more often instead.
create function announce(channel text, payload text) returns void language plpgsql set search_path from current as $$
begin
  if pg_notification_queue_usage() < 0.5 then
    perform pg_notify(current_schema() || '.' || channel, payload);
  end if;
end $$;

-- Creates the partition of one day. Large tables are partitioned by day, so that retention drops whole partitions.
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
create function ensure_day_partition(parent text, day date) returns void
language plpgsql set search_path from current set lock_timeout = '200ms' as $$
declare
  name text := parent || '_' || to_char(day, 'YYYYMMDD');
begin
  -- Only one caller at a time: two nodes would both create the partition.
  perform take_lock('partitions');
  if to_regclass(format('%I.%I', current_schema(), name)) is null then
    execute format('create table %I (like %I including all)', name, parent);
    execute format(
      'alter table %I set (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1,
        autovacuum_analyze_threshold = 1000)', name);
    execute format(
      'alter table %I attach partition %I for values from (%L) to (%L)', parent, name, day, day + 1);
  end if;
end $$;

-- Creates the partitions from yesterday to `days_ahead` days ahead: of all tables or of none, so that each day that has events
-- has a place for their deliveries and attempts.
create function ensure_day_partitions(days_ahead integer) returns void
language plpgsql set search_path from current set lock_timeout = '200ms' as $$
declare
  today date := (now() at time zone 'utc')::date;
begin
  perform ensure_day_partition(parent, today + offset_days)
  from generate_series(-1, days_ahead) as offset_days, unnest(array['attempts', 'deliveries', 'events']) as parent;
end $$;
