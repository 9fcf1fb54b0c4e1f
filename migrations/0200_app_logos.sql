-- Logos that members upload for their apps. Owner: src/apps.

-- The digest that the logo is served under; null without a logo.
alter table clients add column logo text;

create table app_logos (
  client_id text primary key references clients on delete cascade,
  -- SHA-256 of the app, the type and the content, in base64url: no two apps share an address.
  digest text not null unique check (length(digest) = 43),
  type text not null check (type in ('image/png', 'image/jpeg', 'image/webp')),
  content bytea not null check (octet_length(content) between 1 and 65536),
  created_at timestamptz not null default now()
);

-- Images are compressed already.
alter table app_logos alter column content set storage external;
