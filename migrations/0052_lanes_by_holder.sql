-- An index on the holder served what is asked once in half a minute, and what is asked with each lot of outcomes was
-- led astray by it: all lanes of a node were read for the few that it names, because the planner, which has seen no
-- holder when the statistics were made, takes one for rare.
drop index lane_progress_owner;
