-- Publishing by SQL. An application calls `publish` in its own transaction, so the event commits with the application's change.
-- Servers process the inbox: they check each body against the schema of its kind and write events. Owner: src/events.
--   in the inbox → (processed) → event | rejected event → (retried with a corrected body) → event | (discarded)

-- Inbox ids count the KiB written, so that one number limits both rows and bytes.
create sequence inbox_ids;

create table inbox (
  -- Rows of one transaction are in the order of publishing.
  id bigint not null,
  -- An account id, or the application's user id.
  account text collate "C" not null,
  event_id text not null,
  -- Whether the publisher chose the event's id.
  is_chosen boolean not null,
  kind text not null,
  body text not null,
  -- Bytes of the body.
  size integer not null,
  published_at timestamptz not null default clock_timestamp(),
  -- Accounts take turns. There is no other index, because each one slows publishers down.
  primary key (account, id)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  -- As for the outbox, servers vacuum this table themselves.
  vacuum_truncate = off
);

-- A row lives for milliseconds. Compressing its body is not worthwhile.
alter table inbox alter column body set storage external;

-- Inbox rows that failed validation.
create table rejected_events (
  id uuid primary key,
  account text not null,
  event_id text not null,
  is_chosen boolean not null,
  kind text not null,
  body text not null,
  -- Bytes of the body.
  size integer not null,
  -- One sentence, and the errors in the form of API responses.
  reason text not null,
  errors jsonb not null,
  published_at timestamptz not null,
  rejected_at timestamptz not null default now()
);

-- Each rejection sums the sizes of all rejected events. This index avoids reading the bodies.
create index rejected_events_sizes on rejected_events (size);

-- State that servers share with publishers, in one row.
create table intake (
  is_only boolean primary key default true check (is_only),
  -- Lower bound of the inbox ids that servers still have to process. `publish` compares it with the newest id.
  first_id bigint not null default 0,
  -- Until this time a server polls the inbox without notifications. Never decreases.
  polls_until timestamptz not null default '-infinity',
  -- Whether the limit of rejected events is reached.
  is_blocked boolean not null default false
) with (fillfactor = 50);

insert into intake default values;

-- Publishes an event of a kind for an account (its id, or the application's user id), in the transaction of the caller. The
-- function reads neither accounts nor event ids, so it cannot reveal them to the caller.
create function publish(kind text, account text, body jsonb, id text default null) returns text
language plpgsql security definer set search_path from current as $$
declare
  -- The same limit as for `POST /events`.
  body_bytes_max constant integer := 262144;
  -- Limit of KiB in the inbox.
  waiting_max constant bigint := 1048576;
  content text := publish.body::text;
  event_id text := publish.id;
  number bigint;
  is_blocked boolean;
  waiting bigint;
  is_polled boolean;
begin
  -- PostgreSQL prepares each expression again in every transaction, so a valid call evaluates as few as possible.
  if (char_length(publish.kind) between 1 and 255 and char_length(publish.account) between 1 and 255
    and octet_length(content) <= body_bytes_max
    and (event_id is null or event_id collate "C" ~ '^[!-~]{1,255}$')) is not true then
    if publish.kind is null or publish.account is null or publish.body is null then
      raise exception 'kind, account and body must not be null' using errcode = 'null_value_not_allowed';
    end if;
    if char_length(publish.kind) not between 1 and 255 then
      raise exception 'kind must have 1 to 255 characters' using errcode = 'invalid_parameter_value';
    end if;
    if char_length(publish.account) not between 1 and 255 then
      raise exception 'account must have 1 to 255 characters' using errcode = 'invalid_parameter_value';
    end if;
    if octet_length(content) > body_bytes_max then
      raise exception 'body has % bytes, but the limit is %', octet_length(content), body_bytes_max
        using errcode = 'program_limit_exceeded';
    end if;
    raise exception 'id must be 1 to 255 visible ASCII characters' using errcode = 'invalid_parameter_value';
  end if;
  select intake.is_blocked, last_value - first_id, polls_until > clock_timestamp() + interval '900 ms'
    into is_blocked, waiting, is_polled from intake, inbox_ids;
  if is_blocked or waiting > waiting_max then
    if is_blocked then
      raise exception 'too many rejected events wait for an operator' using errcode = 'configuration_limit_exceeded',
        hint = 'See "nuncio rejected list".';
    end if;
    raise exception 'too many events wait to be taken in' using errcode = 'configuration_limit_exceeded',
      hint = 'Check that a Nuncio server is running.';
  end if;
  for kib in 0 .. octet_length(content) / 1024 loop
    number := nextval('inbox_ids');
  end loop;
  insert into inbox (id, account, event_id, is_chosen, kind, body, size)
  values (
    number, publish.account,
    -- Builds a UUIDv7 from a UUIDv4: the time in milliseconds, the version, and the remaining random bits.
    coalesce(event_id,
      overlay(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') placing '-' from 9 for 0)
      || '-7' || substr(gen_random_uuid()::text, 16)),
    event_id is not null, publish.kind, content, octet_length(content))
  returning inbox.event_id into event_id;
  -- The notification wakes the servers at commit. Commits with a notification are serialized, so there is none while a server
  -- polls. If the transaction outlives the polling, the event waits for the next idle poll, which comes every second.
  if not is_polled then
    perform announce('inbox', '');
  end if;
  return event_id;
end $$;

-- The role that can only publish: `<schema>_publisher`, by default `nuncio_publisher`. The name includes the schema, because
-- roles belong to the whole cluster. If this user may not create roles, a database administrator does it (docs/publishing.md).
do $$
declare
  publisher name := current_schema() || '_publisher';
begin
  if to_regrole(quote_ident(publisher)) is null then
    begin
      execute format('create role %I nologin', publisher);
    exception
      -- Another database of the cluster created the role at the same time.
      when duplicate_object or unique_violation then null;
      when insufficient_privilege then return;
    end;
  end if;
  execute format('grant usage on schema %I to %I', current_schema(), publisher);
  execute format('grant execute on function publish(text, text, jsonb, text) to %I', publisher);
end $$;
