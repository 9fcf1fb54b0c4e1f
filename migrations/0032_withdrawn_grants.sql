-- Withdrawn grants are kept for 90 days, and one user can make and withdraw many. They were in no index by account or client: each deletion of an account
-- read the whole table once for its cascade, and each round of housekeeping once for the clients that it may remove. Owner: src/grants.
-- The operator of a large database builds the indexes beforehand, with `concurrently` (docs/upgrading.md).

-- For the cascade of `accounts`, which cannot use the indexes of live grants. Whoever looks for live grants may use it, too, and finds them as fast: with the
-- account alone, it would read all of its grants.
-- squawk-ignore require-concurrent-index-creation
create index if not exists grants_all_of_account on grants (account_id, withdrawn_at, client_id, id desc);
-- For the clients whose last grant was withdrawn long ago (src/clients/self_registered.ts).
-- squawk-ignore require-concurrent-index-creation
create index if not exists grants_withdrawn_of_client on grants (client_id, withdrawn_at) where withdrawn_at is not null;
