-- What subscriptions can have since this version: no URL, a filter, a version, authentication, a handshake. Owners: src/events,
-- src/webhooks/subscriptions, src/webhooks/lanes.

-- The version of the body: the newest that the publishing node knew. Null if the kind had no versions.
alter table events add column version text;

-- The schemas of kinds at each start that was accepted. Owner: src/events/schema_history.ts.
create table event_schemas (
  kind text not null,
  -- Empty for a kind without versions.
  version text not null,
  -- SHA-256 of the schema, in hexadecimal.
  digest text not null,
  -- JSON.
  schema text not null,
  example text not null,
  seen_at timestamptz not null default clock_timestamp(),
  primary key (kind, version, digest)
);

alter table subscriptions
  -- Null if the subscriber only pulls (src/webhooks/reader). Decided at the creation. Old nodes never meet one (see below).
  -- squawk-ignore ban-drop-not-null
  alter column url drop not null,
  -- How deliveries authenticate to the subscriber besides their signature: what may be shown, and the whole as sealed JSON.
  add column auth jsonb,
  add column auth_secret bytea,
  -- Whether each new URL must echo a challenge before it is stored.
  add column handshake boolean not null default false,
  -- The date by which the version of each kind's body is chosen. Null if there were no versions when it was made.
  add column version text,
  -- Conditions on the body, as the owner gave them, as an SQL/JSON path, and the SHA-256 of that. Null for no filter.
  add column filter json,
  add column filter_path jsonpath,
  add column filter_digest bytea,
  -- What an evaluation of the filter costs fan-out, in deliveries. The cost grows with the path.
  add column filter_weight integer not null default 0;

-- Not a generated column, because adding one rewrites the table.
create function weigh_filter() returns trigger language plpgsql set search_path from current as $$
begin
  new.filter_weight := coalesce(octet_length(new.filter_path::text) / 500, 0);
  return new;
end $$;

create trigger subscription_filter_weight before insert on subscriptions
  for each row when (new.filter_path is not null) execute function weigh_filter();
create trigger subscription_filter_weight_changed before update of filter_path on subscriptions
  for each row execute function weigh_filter();

-- A body as PostgreSQL understands JSON; null if it does not. Bodies are JSON, but may have characters or numbers that `jsonb` cannot store.
create function body_as_json(body text) returns jsonb language plpgsql immutable set search_path from current as $$
begin
  return body::jsonb;
exception when others then
  return null;
end $$;

create or replace function erase_subscription_secrets() returns trigger language plpgsql set search_path from current as $$
begin
  new.secret := '';
  new.previous_secret := null;
  new.previous_secret_until := null;
  new.headers := null;
  new.auth_secret := null;
  return new;
end $$;

alter table subscription_revisions
  -- squawk-ignore ban-drop-not-null
  alter column url drop not null,
  add column version text;

-- `header_names` also has the header with which a delivery authenticates.
create or replace function keep_subscription_revision() returns trigger language plpgsql set search_path from current as $$
begin
  insert into subscription_revisions (lane, revision, url, signature, format, header_names, version)
  values (new.lane, new.revision, new.url, new.signature, new.format,
    new.header_names || case new.auth->>'type' when 'basic' then '{authorization}' when 'oauth2' then '{authorization}'
      when 'header' then array[new.auth->>'name'] else '{}' end,
    new.version)
  on conflict (lane, revision) do nothing;
  return null;
end $$;

-- The subscription has no URL, so no node ever leases the lane.
alter table lane_progress add column is_pulled boolean not null default false;

-- How far subscribers say that they have read. Informs only. Owner: src/webhooks/reader/acknowledgement.ts.
create table acknowledgements (
  lane bigint primary key references subscriptions (lane) on delete cascade,
  sequence bigint not null,
  at timestamptz not null default now()
);

-- Old nodes beside new ones. An old node would send every event to a subscription with a filter, send without authentication, and fail
-- for one without a URL. So such a subscription is refused while an old node is a member, and no old node can become a member again
-- when there is such a subscription, for example after it was paused.

-- Which subscriptions the node can serve: 0 as in migrations up to 0019, 1 all of this migration. Owner: src/webhooks/lanes/node.ts.
alter table nodes add column generation integer not null default 0;

create function refuse_beside_old_nodes() returns trigger language plpgsql set search_path from current as $$
begin
  -- A stopped node has deleted its row, and a killed one counts until the time has passed.
  if exists (select from nodes where generation < 1 and alive_until > now()) then
    raise exception 'a node of an earlier version is running and cannot serve this subscription'
      using errcode = 'NUN01', hint = 'Stop all nodes of the earlier version.';
  end if;
  return new;
end $$;

create trigger subscription_for_new_nodes before insert on subscriptions
  for each row when (new.url is null or new.filter is not null or new.auth is not null or new.handshake
    or new.version is not null or new.format not in ('json', 'cloudevents'))
  execute function refuse_beside_old_nodes();

create trigger subscription_changed_for_new_nodes before update of filter, auth, handshake, version, format on subscriptions
  for each row when (new.state <> 'ended' and (
    new.filter is not null and new.filter::text is distinct from old.filter::text
    or new.auth is not null and new.auth is distinct from old.auth
    or new.handshake and not old.handshake
    or new.version is not null and new.version is distinct from old.version
    or new.format <> old.format and new.format not in ('json', 'cloudevents')))
  execute function refuse_beside_old_nodes();

create function refuse_old_node() returns trigger language plpgsql set search_path from current as $$
begin
  if exists (
    select from subscriptions
    where state <> 'ended' and (url is null or filter is not null or auth is not null or handshake
      or version is not null or format not in ('json', 'cloudevents'))
  ) then
    raise exception 'a node of an earlier version cannot serve all subscriptions' using errcode = 'NUN01',
      hint = 'Start the version that has migrated the schema.';
  end if;
  return new;
end $$;

create trigger node_of_earlier_version before insert on nodes
  for each row when (new.generation < 1)
  execute function refuse_old_node();

-- How long rows are kept: the section `retention` of the platform, as the node has it that started last. All nodes read it here, so that
-- they agree. Owner: src/database/retention.ts.
create table retention (
  is_only boolean primary key default true check (is_only),
  -- Events, their deliveries and attempts.
  deliveries_days integer not null default 30,
  -- Headers and bodies of responses.
  responses_days integer not null default 30,
  -- Null to keep them until an operator discards them.
  rejected_days integer,
  audit_days integer not null default 90,
  connections_days integer not null default 7,
  -- Mails and the notices in them.
  mails_days integer not null default 30,
  -- Responses up to this day were deleted.
  responses_deleted_through date
);

insert into retention default values;
