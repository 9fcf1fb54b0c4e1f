-- The apps of a user, page by page (src/oauth/connected_apps.ts). A user can have thousands of apps, and a hundred grants of each: one look-up in
-- this index finds the next app and its newest grant, however many there are. Owner: src/grants.
-- The operator of a large database builds the index beforehand, with `concurrently` (docs/upgrading.md).

-- squawk-ignore require-concurrent-index-creation
create index if not exists grants_of_account_and_client on grants (account_id, client_id, id desc) where withdrawn_at is null;
