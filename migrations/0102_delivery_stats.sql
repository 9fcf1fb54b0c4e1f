-- What became of deliveries, counted by subscription and time, so that nobody has to read the log for it. Owner:
-- src/webhooks/log/delivery_stats.ts.

create table delivery_stats (
  -- Of a subscription; 0 for all of them together.
  lane bigint not null,
  -- Length of the bucket: 300 or 3600.
  seconds integer not null,
  bucket timestamptz not null,
  -- By the order of src/webhooks/log/delivery_stats.ts: outcomes, latencies, classes of errors.
  counts bigint[] not null,
  primary key (lane, seconds, bucket)
) with (fillfactor = 70);

create index delivery_stats_age on delivery_stats (seconds, bucket);

create function add_counts(a bigint[], b bigint[]) returns bigint[]
language sql immutable parallel safe as $$
  select array_agg(coalesce(x, 0) + coalesce(y, 0) order by position)
  from unnest(a, b) with ordinality as t (x, y, position)
$$;
