-- Events for agents: subscriptions that an agent makes over the Model Context Protocol. Owner: src/webhooks/subscriptions/agent_subscription.ts.

-- Each is an ordinary subscription of a grant, and this row says what the agent asked for. It ends with the subscription.
--   live (ended_at null) → expired or unsubscribed, silently | revoked, after which the agent is told once (`last_secret`)
create table agent_subscriptions (
  id uuid primary key references subscriptions (id) on delete cascade,
  lane bigint not null,
  grant_id uuid not null,
  account_id uuid not null,
  -- `webhook`: sent to the URL of the subscription. `poll`: the agent polls or streams.
  mode text not null check (mode in ('webhook', 'poll')),
  -- `sub_` and a digest of grant, URL, name and arguments.
  key text not null,
  -- The kind.
  name text not null,
  -- As canonical JSON.
  arguments text not null,
  -- The scope that the kind requires. Null if it requires none.
  scope text,
  expires_at timestamptz not null,
  -- When the URL last echoed a challenge. Null for `poll`.
  verified_at timestamptz,
  -- Since when deliveries are held because most failed. Null while they are sent.
  held_at timestamptz,
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  end_reason text check (end_reason in ('expired', 'unsubscribed', 'revoked')),
  -- The sealed secret of a webhook that was revoked, until the agent was told of it.
  last_secret bytea,
  -- When the agent is to be told that events were lost. Null for nothing to tell. Owner: src/webhooks/sending/agent_control.ts.
  gap_at timestamptz,
  -- When the agent last refreshed a subscription that was held: failures before are forgiven. Owner: src/webhooks/subscriptions/agent_hold.ts.
  released_at timestamptz,
  check ((ended_at is null) = (end_reason is null))
);

-- Of concurrent requests with the same key, one creates the subscription.
create unique index agent_subscriptions_live on agent_subscriptions (key, mode) where ended_at is null;
create index agent_subscriptions_of_grant on agent_subscriptions (grant_id, mode) where ended_at is null;
create index agent_subscriptions_of_account on agent_subscriptions (account_id, mode) where ended_at is null;
create index agent_subscriptions_expiring on agent_subscriptions (expires_at) where ended_at is null;
create unique index agent_subscriptions_lane on agent_subscriptions (lane);
create index agent_subscriptions_gap on agent_subscriptions (gap_at) where gap_at is not null;
create index agent_subscriptions_untold on agent_subscriptions (ended_at) where last_secret is not null;

-- Whichever statement ends the subscription. Expiry and unsubscribing end this row first, and nothing is told.
create function end_agent_subscription() returns trigger language plpgsql set search_path from current as $$
declare
  is_untold boolean;
begin
  update agent_subscriptions set ended_at = now(), end_reason = 'revoked',
    last_secret = case when mode = 'webhook' and expires_at > now() then old.secret end
  where id = old.id and ended_at is null
  returning last_secret is not null into is_untold;
  if is_untold then
    perform announce('agent_ended', '');
  end if;
  return null;
end $$;

create trigger agent_subscription_ended after update on subscriptions
  for each row when (old.state <> 'ended' and new.state = 'ended')
  execute function end_agent_subscription();

-- A subscription of a collection's kind needs its scope for as long as it lives.
create function end_agent_subscriptions_out_of_scope() returns trigger language plpgsql set search_path from current as $$
begin
  update subscriptions s set state = 'ended', ended_at = now(), updated_at = now()
  from agent_subscriptions a
  where a.grant_id = new.id and a.ended_at is null and a.scope <> all(new.scopes) and s.id = a.id and s.state <> 'ended';
  return null;
end $$;

create trigger grant_scopes_lost_ends_agent_subscriptions after update of scopes on grants
  for each row when (not new.scopes @> old.scopes)
  execute function end_agent_subscriptions_out_of_scope();

-- Other subscriptions of a disabled account wait for it. An agent's ends, and the agent is told.
create function end_agent_subscriptions_of_account() returns trigger language plpgsql set search_path from current as $$
begin
  update subscriptions s set state = 'ended', ended_at = now(), updated_at = now()
  from agent_subscriptions a
  where a.account_id = new.id and a.ended_at is null and s.id = a.id and s.state <> 'ended';
  return null;
end $$;

create trigger account_disabled_ends_agent_subscriptions after update of disabled_at on accounts
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function end_agent_subscriptions_of_account();

create function agent_gap_due() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('agent_gap', '');
  return null;
end $$;

create trigger agent_gap_due after update on agent_subscriptions
  for each row when (old.gap_at is null and new.gap_at is not null)
  execute function agent_gap_due();
