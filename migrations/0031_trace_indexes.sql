-- Each write of connection traces looks for their keys in two indexes. Entries that were pending in these had to be read one by one for each key, so that a write
-- took up to 1.6 s while many traces were written. Now entries go into their places at once.

-- For its lock, which the indexes need.
alter table connections set (autovacuum_vacuum_scale_factor = 0.1);
alter index connections_keys set (fastupdate = off);
alter index connections_requests set (fastupdate = off);
select gin_clean_pending_list('connections_keys'::regclass), gin_clean_pending_list('connections_requests'::regclass);
