-- Tables that were created from declarations. Migrations of collections touch no other table. Owner: src/collections.

create table collections (
  -- Name of the table.
  name text primary key,
  created_at timestamptz not null default now()
);
