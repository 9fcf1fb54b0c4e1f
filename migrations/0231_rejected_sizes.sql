-- How much is kept is summed with each event that is rejected: by this index, not over the bodies.
create index rejected_events_sizes on rejected_events (size);
