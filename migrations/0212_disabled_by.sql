-- Who disabled an account: 'application' for a machine client of the accounts API, which may enable the account again.
-- Null for the operator, whose decision stands. Owner: src/accounts.

alter table accounts
  add column disabled_by text check (disabled_by = 'application');
