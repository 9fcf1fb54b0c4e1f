-- How deliveries are numbered. Fan-out changes the row of a lane with each event. A snapshot that stays open, such as that of a dump,
-- keeps all versions of these rows, and each look-up passes over all of them. Then fan-out only adds deliveries: the newest one has
-- the last number. Owner: src/webhooks/log/numbering.ts.

-- Deliveries of this day may have numbers from next_sequence on, those of other days have not. Null if no delivery has.
alter table lanes add column day date;

-- The sequence of the newest delivery of a lane; 0 if it has had none.
create function newest_sequence(tail lanes) returns bigint language plpgsql stable set search_path from current as $$
begin
  if tail.day is null then
    return tail.next_sequence - 1;
  end if;
  return greatest(tail.next_sequence - 1, (
    select d.sequence from deliveries d where d.lane = tail.id and d.day = tail.day order by d.sequence desc limit 1));
end $$;

-- The same, including what was committed since the statement began. For a statement that has just locked the lane.
create function newest_sequence_now(lane bigint) returns bigint language plpgsql volatile set search_path from current as $$
begin
  return (select newest_sequence(l) from lanes l where l.id = lane);
end $$;

-- Whoever else adds to next_sequence begins after the newest delivery.
create function number_from_newest() returns trigger language plpgsql set search_path from current as $$
begin
  new.next_sequence := new.next_sequence - old.next_sequence + newest_sequence_now(old.id) + 1;
  return new;
end $$;

create trigger lanes_numbered before update of next_sequence on lanes
  for each row when (old.day is not null and new.day is not distinct from old.day)
  execute function number_from_newest();

-- Nodes of earlier versions take next_sequence for the end of the lane. While one is a member, fan-out always changes it.
create function refuse_node_without_numbering() returns trigger language plpgsql set search_path from current as $$
begin
  if exists (select from lanes where day is not null) then
    raise exception 'a node of an earlier version cannot find all deliveries' using errcode = 'NUN01',
      hint = 'Start the version that has migrated the schema.';
  end if;
  return new;
end $$;

create trigger node_without_numbering before insert on nodes
  for each row when (new.generation < 2) execute function refuse_node_without_numbering();

-- As in 0015, but by the newest delivery.
create or replace function mend_cursors() returns void language sql set search_path from current as $$
  update lane_progress p set cursor = least(newest_sequence(l), greatest(
    (select min(d.sequence) - 1 from deliveries d where d.lane = p.lane),
    (select max(h.last) from held_ranges h where h.lane = p.lane)))
  from lanes l where l.id = p.lane and p.cursor >= l.next_sequence and p.cursor > newest_sequence(l)
$$;

create or replace function begin_epoch(after integer, identity text) returns uuid
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
      select l.id, newest_sequence(l) + 1, begun.tag
      from lanes l join subscriptions s on s.lane = l.id where s.state <> 'ended'
      on conflict (lane, first) do update set tag = excluded.tag, began_at = excluded.began_at;
    perform mend_cursors();
    -- The holders of leases have stale data about their lanes.
    update lane_progress set owner = null, due_at = greatest(now(), coalesce(paused_until, now()))
    where owner is not null;
  end if;
  return (select id from database_epochs order by number desc limit 1);
end $$;
