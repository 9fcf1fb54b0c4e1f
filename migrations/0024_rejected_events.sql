-- Limits of rejected events, and of the inbox, for each account: no account keeps others from publishing. Owner: src/events.

-- `publish` reads an account's rejected events. Their number is limited, so the index is built fast.
-- squawk-ignore require-concurrent-index-creation
create index rejected_events_of_account on rejected_events (account) include (size);

alter table intake
  -- Whether no account at all can publish. `is_blocked` now refuses accounts with a rejected event only.
  add column is_full boolean not null default false;

create or replace function publish(kind text, account text, body jsonb, id text default null) returns text
language plpgsql security definer set search_path from current as $$
declare
  -- The same limit as for `POST /events`.
  body_bytes_max constant integer := 262144;
  -- Limit of KiB in the inbox. With half as many, an account has a limit of its own.
  waiting_max constant bigint := 1048576;
  -- Limits of an account: rejected events, and events in an inbox that is half full.
  account_events_max constant integer := 1000;
  account_bytes_max constant integer := 10485760;
  content text := publish.body::text;
  event_id text := publish.id;
  number bigint;
  is_refused boolean;
  is_full boolean;
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
  -- The account's rejected events are counted up to its limit. Usually there is none.
  select intake.is_full, last_value - first_id, polls_until > clock_timestamp() + interval '900 ms',
      (select count(*) >= case when intake.is_blocked then 1 else account_events_max end
          or coalesce(sum(size), 0) >= account_bytes_max
        from (
          select size from rejected_events where rejected_events.account = publish.account limit account_events_max
        ) as rejected)
    into is_full, waiting, is_polled, is_refused from intake, inbox_ids;
  if is_full or is_refused or waiting > waiting_max / 2 then
    if is_full or is_refused then
      raise exception 'too many rejected events%', case when is_full then ' wait for an operator'
          else ' of this account wait for an operator' end
        using errcode = 'configuration_limit_exceeded', hint = 'See "nuncio rejected list".';
    end if;
    if waiting > waiting_max then
      raise exception 'too many events wait to be taken in' using errcode = 'configuration_limit_exceeded',
        hint = 'Check that a Nuncio server is running.';
    end if;
    if (
      select count(*) >= account_events_max or coalesce(sum(size), 0) >= account_bytes_max
      from (select size from inbox where inbox.account = publish.account limit account_events_max) as waiting
    ) then
      raise exception 'too many events of this account wait to be taken in' using errcode = 'configuration_limit_exceeded',
        hint = 'Check that a Nuncio server is running.';
    end if;
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
