-- Subscriptions: URLs that receive events. Owner: src/webhooks/subscriptions.

create table subscriptions (
  id uuid primary key,
  -- Id of the lane, the queue of this subscription: 52 random bits. Part of each delivery id.
  lane bigint not null unique,
  owner text not null check (owner in ('grant', 'user', 'client')),
  grant_id uuid,
  -- The user whose events are sent. Null if the owner is a client.
  account_id uuid,
  client_id text,
  url text not null,
  kinds text[] not null,
  signature text not null,
  format text not null default 'json',
  ordered boolean not null default false,
  -- Attempts per second. Null for no limit.
  rate_limit integer,
  description text not null default '',
  -- In seconds. Null for the deployment's default.
  retry_schedule integer[],
  state text not null default 'active' check (state in ('active', 'disabled', 'ended')),
  disabled_reason text,
  -- Counts changes. Each attempt records the revision it used.
  revision integer not null default 1,
  -- Sealed. Empty after the end.
  secret bytea not null,
  previous_secret bytea,
  previous_secret_until timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  ended_at timestamptz,
  -- Static headers as sealed JSON. Null for none. Their names are visible, also in the log of attempts.
  headers bytea,
  header_names text[] not null default '{}',
  -- The event position at the creation of the subscription. Unlike times, positions are safe against clock changes. An event
  -- with a greater position is newer than the subscription. An event with a smaller position may have been committed later,
  -- because transactions overlap; for these the times decide.
  created_position bigint not null default coalesce(pg_sequence_last_value('event_positions'), 0),
  check ((owner = 'client') = (account_id is null)),
  check ((owner = 'grant') = (grant_id is not null)),
  check (owner = 'user' or client_id is not null)
);

create index subscriptions_of_account on subscriptions (account_id, lane) where state <> 'ended';
create index subscriptions_of_grant on subscriptions (grant_id) where state <> 'ended';
create index subscriptions_of_client on subscriptions (client_id, id) where state <> 'ended';
-- A client has few subscriptions of its own, but may have thousands for its users.
create index subscriptions_of_client_itself on subscriptions (client_id, lane) where owner = 'client' and state <> 'ended';

-- The sweeps of the lanes read the live ones, and retention the ended ones.
create index subscriptions_live on subscriptions (lane) where state <> 'ended';
create index subscriptions_ended on subscriptions (ended_at, lane) where state = 'ended';

-- An ended subscription signs nothing any more, so its secrets are erased, whichever statement ends it. The row remains while the log
-- has its deliveries (src/webhooks/subscriptions/ended.ts).
create function erase_subscription_secrets() returns trigger language plpgsql set search_path from current as $$
begin
  new.secret := '';
  new.previous_secret := null;
  new.previous_secret_until := null;
  new.headers := null;
  return new;
end $$;

create trigger subscription_ended before update on subscriptions
  for each row when (old.state <> 'ended' and new.state = 'ended')
  execute function erase_subscription_secrets();

-- Everything that determines the requests of a subscription, by revision. Only the trigger below writes this table.
create table subscription_revisions (
  lane bigint not null references subscriptions (lane) on delete cascade,
  revision integer not null,
  url text not null,
  signature text not null,
  format text not null,
  created_at timestamptz not null default now(),
  header_names text[] not null default '{}',
  primary key (lane, revision)
);

create function keep_subscription_revision() returns trigger language plpgsql set search_path from current as $$
begin
  insert into subscription_revisions (lane, revision, url, signature, format, header_names)
  values (new.lane, new.revision, new.url, new.signature, new.format, new.header_names)
  on conflict (lane, revision) do nothing;
  return null;
end $$;

create trigger subscription_revised after insert or update of revision on subscriptions
  for each row execute function keep_subscription_revision();

-- The last warning before a failing subscription is disabled. Owner: src/webhooks/subscriptions/failing.ts.
create table failing_warnings (
  lane bigint primary key references subscriptions (lane) on delete cascade,
  -- Copied from lane_progress. A later series of failures gets new warnings.
  failing_since timestamptz not null,
  warning text not null check (warning in ('half', 'last')),
  given_at timestamptz not null default now(),
  -- The subscription is not disabled before this time, nor without the last warning.
  disables_at timestamptz not null
);

create index failing_warnings_next on failing_warnings (disables_at, lane);

-- Nodes cache subscriptions. These notifications make them read subscriptions again after the commit. A payload names a lane, or
-- several of them: `grant:<id>`, `account:<id>` (all of an account), `client:<id>` (the app's own), or `app:<id>` (also those of its users).
create function notify_lane_changed(lane bigint) returns void language sql set search_path from current as $$
  select announce('lane_changed', lane::text)
$$;

-- One notification for each lane, or for the fewest groups if a statement changed many. A node that gets more than a thousand payloads at
-- once reads all of its lanes again, whoever they belong to.
create function subscriptions_changed() returns trigger language plpgsql set search_path from current as $$
declare
  payloads text[] := array(select lane::text from changed limit 17);
begin
  if cardinality(payloads) > 16 then
    payloads := array(
      select distinct case when grant_id is not null then 'grant:' || grant_id
        when client_id is not null then 'client:' || client_id else 'account:' || account_id end
      from changed limit 101);
  end if;
  if cardinality(payloads) > 100 then
    payloads := array(select distinct coalesce('app:' || client_id, 'account:' || account_id) from changed);
  end if;
  perform announce('lane_changed', payload) from unnest(payloads) as payload;
  return null;
end $$;

create trigger subscriptions_changed after update on subscriptions
  referencing new table as changed for each statement execute function subscriptions_changed();

-- A subscription ends in the transaction that withdraws its grant, whichever statement withdraws it. A client's own
-- subscriptions continue without the events of that account.
create function end_subscriptions_of_grant() returns trigger language plpgsql set search_path from current as $$
begin
  update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
  where grant_id = old.id and state <> 'ended';
  if exists (select from subscriptions where client_id = old.client_id and owner = 'client' and state <> 'ended') then
    perform announce('lane_changed', 'client:' || old.client_id);
  end if;
  return null;
end $$;

create trigger grant_withdrawn_ends_subscriptions after update of withdrawn_at on grants
  for each row when (old.withdrawn_at is null and new.withdrawn_at is not null)
  execute function end_subscriptions_of_grant();

create trigger grant_deleted_ends_subscriptions after delete on grants
  for each row execute function end_subscriptions_of_grant();

-- When the scopes of a grant change, nodes check the deliveries in their memory again.
create function review_subscriptions_of_grant() returns trigger language plpgsql set search_path from current as $$
begin
  if exists (select from subscriptions s where s.grant_id = new.id and s.state <> 'ended') then
    perform announce('lane_changed', 'grant:' || new.id);
  end if;
  if exists (select from subscriptions where client_id = new.client_id and owner = 'client' and state <> 'ended') then
    perform announce('lane_changed', 'client:' || new.client_id);
  end if;
  return null;
end $$;

create trigger grant_scopes_changed after update of scopes on grants
  for each row when (old.scopes is distinct from new.scopes)
  execute function review_subscriptions_of_grant();

-- Subscriptions of an account end when it is deleted, and stop while it is disabled.
create function account_of_subscriptions_changed() returns trigger language plpgsql set search_path from current as $$
begin
  if tg_op = 'DELETE' then
    update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
    where account_id = old.id and state <> 'ended';
    return null;
  end if;
  if exists (select from subscriptions s where s.account_id = new.id and s.state <> 'ended') then
    perform announce('lane_changed', 'account:' || new.id);
  end if;
  perform announce('lane_changed', 'client:' || g.client_id)
  from grants g where g.account_id = new.id and g.withdrawn_at is null
    and exists (select from subscriptions s where s.client_id = g.client_id and s.owner = 'client');
  return null;
end $$;

create trigger account_deleted_ends_subscriptions after delete on accounts
  for each row execute function account_of_subscriptions_changed();

create trigger account_disabled_stops_subscriptions after update of disabled_at on accounts
  for each row when ((old.disabled_at is null) <> (new.disabled_at is null))
  execute function account_of_subscriptions_changed();

-- Subscriptions of a client end when it is deleted, and those of its users also when it is disabled: in one statement, before the triggers
-- of its grants would end them grant by grant. The grants are locked first, in the same order as by a withdrawal.
create function end_subscriptions_of_client() returns trigger language plpgsql set search_path from current as $$
begin
  perform from grants where client_id = old.id and withdrawn_at is null order by id for no key update;
  update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
  where client_id = old.id and state <> 'ended' and (tg_op = 'DELETE' or owner = 'grant');
  return case tg_op when 'DELETE' then old else new end;
end $$;

create trigger client_deleted_ends_subscriptions before delete on clients
  for each row execute function end_subscriptions_of_client();

create trigger client_disabled_ends_subscriptions before update on clients
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function end_subscriptions_of_client();

-- Its own subscriptions stop while it is disabled or suspended.
create function client_of_subscriptions_changed() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('lane_changed', 'client:' || new.id);
  return null;
end $$;

-- Without a list of columns: such a trigger ignores columns that another trigger changes.
create trigger client_disabled_stops_subscriptions after update on clients
  for each row when (
    (old.disabled_at is null, old.suspended_at is null, old.verified_at is null, old.may_subscribe)
    is distinct from (new.disabled_at is null, new.suspended_at is null, new.verified_at is null, new.may_subscribe))
  execute function client_of_subscriptions_changed();
