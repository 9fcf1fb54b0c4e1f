create schema shop authorization shop;
set role shop;

create table shop.users (
  id bigint generated always as identity primary key,
  email text not null unique,
  name text not null,
  password_salt bytea not null,
  password_hash bytea not null
);

create table shop.sessions (
  digest bytea primary key,
  user_id bigint not null references shop.users on delete cascade,
  signed_in_at timestamptz not null default now()
);

create table shop.orders (
  id bigint generated always as identity primary key,
  user_id bigint not null references shop.users on delete cascade,
  item text not null,
  placed_at timestamptz not null default now()
);
