-- The first position of a day whose event is not older than a time. Events of a day come in the order of their time, but for
-- moments, so that the primary key is searched by halves.
create function event_position_at(wanted_day date, wanted timestamptz) returns bigint language plpgsql stable as $$
declare
  low bigint;
  high bigint;
  middle bigint;
  found_at timestamptz;
begin
  select min(position), max(position) + 1 into low, high from events where day = wanted_day;
  while low < high loop
    middle := (low + high) / 2;
    select created_at into found_at from events
    where day = wanted_day and position >= middle order by position limit 1;
    if found_at is null or found_at >= wanted then high := middle; else low := middle + 1; end if;
  end loop;
  return low;
end $$;
