-- Reading a subscription's events by sequence. Owner: src/webhooks/reader.

-- Wakes readers that wait for new deliveries, once per transaction that added some. The notification names no lane: readers look at all
-- lanes that they wait for, in one statement.
create function deliveries_added() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('deliveries_added', '');
  return null;
end $$;

create trigger deliveries_added after update on lanes
  for each statement execute function deliveries_added();
