-- Deliveries of one state are listed, and what waits is counted, without reading the retries that have another state:
-- those that failed stay as long as the log.
create index retries_of_state on retries (lane, state, sequence);
