-- Leases, locks and notifications that other roles cannot disturb. Advisory locks and NOTIFY need no privilege: any role that may
-- connect to the database can hold any advisory lock and send on any channel. The rows of these tables can only be locked by roles
-- that may write the tables. Owner: src/database.

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

-- All functions of earlier migrations use `announce` from here on.
do $$
declare
  definition text;
begin
  for definition in
    select pg_get_functiondef(oid) from pg_proc
    where pronamespace = current_schema()::regnamespace and proname <> 'announce' and prosrc like '%pg_notify(current_schema() || ''.%'
  loop
    execute replace(definition, 'pg_notify(current_schema() || ''.', 'announce(''');
  end loop;
end $$;

create or replace function ensure_day_partition(parent text, day date) returns void
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

-- One running node has each name (src/webhooks/lanes/node_name.ts).
update nodes set name = null;
create unique index nodes_name on nodes (name);

-- A server of an earlier version that fans out holds an advisory lock and would not notice the new leader. Its session ends here.
-- The lock is then held until this migration commits, so that no other one gets it, and without the function none can lead again.
do $$
declare
  former text := current_setting('lock_timeout');
begin
  perform set_config('lock_timeout', '200ms', true);
  -- A role that the migration cannot stop may hold the lock, too: then servers of earlier versions cannot lead either.
  for attempt in 1..10 loop
    -- Otherwise a session that has begun since the last look is not seen.
    perform pg_stat_clear_snapshot();
    perform pg_terminate_backend(l.pid)
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.objsubid = 1 and l.pid <> pg_backend_pid() and a.usename = current_user
      and l.database = (select oid from pg_database where datname = current_database())
      and ((l.classid::bigint << 32) | l.objid::bigint) = lock_key('fan-out');
    begin
      perform pg_advisory_xact_lock(lock_key('fan-out'));
      exit;
    exception when lock_not_available then
    end;
  end loop;
  perform set_config('lock_timeout', former, true);
end $$;

drop function lock_key(text);
