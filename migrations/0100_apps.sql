-- Apps that accounts make and manage together. Owner: src/apps.

alter table clients drop constraint clients_origin_check;
alter table clients
  -- `account`: made over `/apps` by an account, and managed by its members.
  add constraint clients_origin_check check (origin in ('operator', 'registration', 'document', 'account')),
  add column verified_at timestamptz,
  -- Reversible: gets no tokens, its grants do not work, its deliveries stop.
  add column suspended_at timestamptz,
  add column is_stopped boolean not null
    generated always as (disabled_at is not null or suspended_at is not null) stored;

-- Hardly any client is stopped: a look-up for each event reads an index of next to nothing.
drop index clients_disabled;
create index clients_stopped on clients (id) where is_stopped;

-- An epoch also ends where a client is suspended: its access tokens are dead at once, and stay so.
create trigger client_suspended_begins_epoch before update of suspended_at on clients
  for each row when (old.suspended_at is null and new.suspended_at is not null)
  execute function begin_client_epoch();

create function withdraw_tokens_of_client() returns trigger language plpgsql as $$
begin
  insert into withdrawals (kind, subject, until)
  values ('client', old.id, now() + interval '1 hour'), ('client_epoch', old.epoch::text, now() + interval '1 hour')
  on conflict (kind, subject) do update
    set created_at = clock_timestamp(), until = excluded.until, transaction_id = excluded.transaction_id;
  return null;
end $$;

create trigger client_suspended after update of suspended_at on clients
  for each row when (old.suspended_at is null and new.suspended_at is not null)
  execute function withdraw_tokens_of_client();

drop trigger client_disabled_stops_subscriptions on clients;
create trigger client_disabled_stops_subscriptions
  after update of disabled_at, suspended_at, verified_at, may_subscribe on clients
  for each row when (
    (old.disabled_at is null, old.suspended_at is null, old.verified_at is null, old.may_subscribe)
    is distinct from (new.disabled_at is null, new.suspended_at is null, new.verified_at is null, new.may_subscribe))
  execute function client_of_subscriptions_changed();

alter table client_secrets
  add column id uuid not null default gen_random_uuid(),
  -- The account that made it; null for the operator and for the app itself.
  add column created_by uuid;
create unique index client_secrets_id on client_secrets (id);

create table app_members (
  client_id text not null references clients on delete cascade,
  account_id uuid not null references accounts on delete cascade,
  role text not null check (role in ('owner', 'developer')),
  created_at timestamptz not null default now(),
  primary key (client_id, account_id)
);

create index app_members_of_account on app_members (account_id, client_id);

-- By address, whether or not there is such an account: whoever invites learns nothing of that.
create table app_invitations (
  id uuid primary key,
  client_id text not null references clients on delete cascade,
  -- Lower case, as in accounts.
  email text not null,
  role text not null check (role in ('owner', 'developer')),
  invited_by uuid references accounts on delete set null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  unique (client_id, email)
);

create index app_invitations_of_email on app_invitations (email, id);

-- Who did it: an account's id or `client:<id>`, where a request of the management API changed something; its
-- transactions say so by the setting `nuncio.actor`.
alter table audit_entries add column actor text;
alter table audit_entries alter column actor set default nullif(current_setting('nuncio.actor', true), '');

create function audit_subscription() returns trigger language plpgsql as $$
begin
  insert into audit_entries (kind, account_id, client_id, grant_id, details)
  values (
    case
      when tg_op = 'INSERT' then 'subscription.created'
      when new.state = 'ended' then 'subscription.ended'
      when new.state <> old.state and new.state = 'disabled' then 'subscription.disabled'
      when new.state <> old.state then 'subscription.enabled'
      when new.secret <> old.secret then 'subscription.secret_rotated'
      else 'subscription.changed'
    end,
    new.account_id, new.client_id, new.grant_id,
    jsonb_build_object('subscription', new.id)
      || case when new.state = 'disabled' then jsonb_build_object('reason', new.disabled_reason) else '{}' end);
  return null;
end $$;

create trigger audit_subscription_created after insert on subscriptions
  for each row execute function audit_subscription();
create trigger audit_subscription_changed after update on subscriptions
  for each row when (old.state <> new.state or old.revision <> new.revision)
  execute function audit_subscription();
