-- Whose turn a due lane is: if more lanes are due than a node claims at once, it claims a few of each tenant (src/webhooks/lanes/lane_claims.ts).
-- An account's id, or a hash of the name of another tenant (src/webhooks/subscriptions/lane_tenant.ts). Null for an earlier lane, until a node leases it.
alter table lane_progress add column if not exists tenant uuid;

-- Few rows are without a lease and have a due time. The operator of a large database adds the column and builds the index beforehand, with
-- `concurrently` (docs/upgrading.md).
-- squawk-ignore require-concurrent-index-creation
create index if not exists lane_progress_turns on lane_progress (tenant, due_at) where owner is null and due_at is not null;
