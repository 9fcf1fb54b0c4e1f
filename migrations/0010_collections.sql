-- The tables that were made from declarations, so that no other table is ever taken for one. Owner: src/collections.

create table collections (
  -- The table's name.
  name text primary key,
  created_at timestamptz not null default now()
);
