-- Epochs of the database. After a failover to a lagging standby, or a restore from a backup, the last commits are lost, and the
-- database assigns the same sequences and positions again to other events. Each such change begins an epoch. Owner:
-- src/database/epoch.ts.

create table database_epochs (
  number integer primary key,
  id uuid not null default gen_random_uuid(),
  -- Part of the ids of deliveries created in this epoch. 0 for the first epoch.
  tag integer not null unique default 1 + floor(random() * 1048575)::integer check (tag between 0 and 1048575),
  -- System identifier and timeline of PostgreSQL. Null if they cannot be read.
  identity text,
  began_at timestamptz not null default now()
);

-- The first sequence of a lane in each later epoch. A lane that was created in the current epoch has no row.
create table lane_epochs (
  lane bigint not null references subscriptions (lane) on delete cascade,
  first bigint not null,
  tag integer not null,
  began_at timestamptz not null default now(),
  primary key (lane, first)
);

create function database_identity() returns text language plpgsql set search_path from current as $$
begin
  return (select system_identifier from pg_control_system())
    || ' ' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
exception
  when insufficient_privilege or undefined_function or feature_not_supported or object_not_in_prerequisite_state then
    return null;
end $$;

-- Moves back each cursor that is beyond the last delivery. A node wrote it that knew deliveries which this database has lost.
-- The nodes then check all deliveries again, starting from the oldest.
create function mend_cursors() returns void language sql set search_path from current as $$
  update lane_progress p set cursor = least(l.next_sequence - 1, greatest(
    (select min(d.sequence) - 1 from deliveries d where d.lane = p.lane),
    (select max(h.last) from held_ranges h where h.lane = p.lane)))
  from lanes l where l.id = p.lane and p.cursor >= l.next_sequence
$$;

-- Begins the epoch after the given one, unless another session has begun it already.
create function begin_epoch(after integer, identity text) returns uuid
language plpgsql set search_path from current as $$
declare
  begun database_epochs;
begin
  insert into database_epochs (number, identity) values (after + 1, begin_epoch.identity)
    on conflict (number) do nothing
    returning * into begun;
  if begun.number is not null then
    -- Nodes cache events by position, so positions must not be assigned twice.
    perform setval('event_positions', (select last_value from event_positions) + 1000000000);
    insert into lane_epochs (lane, first, tag)
      select l.id, l.next_sequence, begun.tag
      from lanes l join subscriptions s on s.lane = l.id where s.state <> 'ended'
      on conflict (lane, first) do update set tag = excluded.tag, began_at = excluded.began_at;
    perform mend_cursors();
    -- The holders of leases have stale data about their lanes.
    update lane_progress set owner = null, due_at = greatest(now(), coalesce(paused_until, now()))
    where owner is not null;
  end if;
  return (select id from database_epochs order by number desc limit 1);
end $$;

-- Called first on each new connection. Begins an epoch if the system identifier or the timeline has changed.
create function enter_epoch() returns uuid language plpgsql set search_path from current as $$
declare
  here text;
  latest database_epochs;
begin
  if pg_is_in_recovery() then
    raise exception 'the database is a standby' using errcode = 'read_only_sql_transaction';
  end if;
  here := database_identity();
  select * into latest from database_epochs order by number desc limit 1;
  if here is null or latest.identity = here then
    return latest.id;
  end if;
  if latest.identity is null then
    update database_epochs set identity = here where number = latest.number;
    return latest.id;
  end if;
  return begin_epoch(latest.number, here);
end $$;

create function current_epoch() returns uuid language sql stable set search_path from current as $$
  select id from database_epochs order by number desc limit 1
$$;

insert into database_epochs (number, tag, identity) values (0, 0, database_identity());
