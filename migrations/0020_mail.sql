-- Mails, and the notices that they tell people about.

insert into leases (name) values ('mail');

-- Mails that wait, and those of the last days. Owner: src/mail/outbox.ts.
create table mails (
  id uuid primary key,
  -- Such as `failing` or `invitation`.
  kind text not null,
  -- The account that the mail is for. Its address is read when the mail is sent. Null for a mail to an address.
  account_id uuid references accounts on delete cascade,
  address text,
  -- What it says (src/mail/content.ts), as `json` because that type stores every string. Null if a composer writes it when it is sent, and after the end.
  content json,
  created_at timestamptz not null default now(),
  -- Time of the next attempt. While an attempt is in flight, the time at which another node may take over.
  due_at timestamptz not null default now(),
  attempts integer not null default 0,
  -- Why the last attempt failed, or why the mail was not sent.
  last_error text,
  sent_at timestamptz,
  -- The address of a mail that was sent, for the limit per address.
  sent_to text,
  -- When the mail was given up or dropped.
  ended_at timestamptz,
  check ((account_id is null) <> (address is null))
);

create index mails_due on mails (due_at) where sent_at is null and ended_at is null;
create index mails_of_account on mails (account_id, kind, created_at);
create index mails_sent on mails (sent_to, kind, sent_at) where sent_at is not null;
create index mails_created on mails (created_at);

-- Kinds of notices that an account does not want. Owner: src/notices/preferences.ts.
create table declined_notices (
  account_id uuid not null references accounts on delete cascade,
  kind text not null,
  declined_at timestamptz not null default now(),
  primary key (account_id, kind)
);

-- Changes that a person is told of, one row for each person. The triggers below write them in the transaction of the change, so that
-- no statement can bypass them. Owner: src/notices/digest.ts.
create table notices (
  id bigint generated always as identity primary key,
  account_id uuid not null references accounts on delete cascade,
  -- One of src/notices/kinds.ts.
  kind text not null,
  -- The app whose member the account is. Null for a subscription of the account.
  client_id text,
  -- Null if the notice is about the app itself.
  subscription_id uuid,
  details jsonb not null default '{}',
  at timestamptz not null default now(),
  -- The mail that tells of it. Null while notices are being collected.
  mail_id uuid references mails on delete cascade
);

create index notices_collected on notices (account_id, kind, at) where mail_id is null;
create index notices_of_account on notices (account_id);
create index notices_of_mail on notices (mail_id) where mail_id is not null;
create index notices_at on notices (at);

-- Adds a notice for the user of a subscription, or for the members of an app. Users of an app get none about its subscriptions.
create function add_notice(of_kind text, subject_owner text, of_account uuid, of_client text, of_subscription uuid, more jsonb)
returns void language sql set search_path from current as $$
  insert into notices (account_id, kind, client_id, subscription_id, details)
  select a.id, of_kind, case when subject_owner = 'client' then of_client end, of_subscription, more
  from accounts a
  where a.disabled_at is null and a.email is not null
    and a.id in (
      select of_account where subject_owner = 'user'
      union all
      select m.account_id from app_members m where subject_owner = 'client' and m.client_id = of_client)
    and not exists (select from declined_notices d where d.account_id = a.id and d.kind = of_kind)
$$;

create function add_subscription_notice() returns trigger language plpgsql set search_path from current as $$
begin
  if new.state = 'disabled' and old.state = 'active' and new.disabled_reason is distinct from 'owner' then
    perform add_notice('disabled', new.owner, new.account_id, new.client_id, new.id,
      jsonb_build_object('reason', new.disabled_reason));
  end if;
  if new.secret <> old.secret then
    perform add_notice('secret_rotated', new.owner, new.account_id, new.client_id, new.id, '{}');
  end if;
  -- Failures before the subscription was enabled no longer count. It has not recovered from them either.
  if new.state = 'active' and old.state = 'disabled' then
    delete from failing_warnings where lane = new.lane;
  end if;
  return null;
end $$;

create trigger subscription_notice after update on subscriptions
  for each row when (new.state <> 'ended' and (old.state <> new.state or old.secret <> new.secret))
  execute function add_subscription_notice();

create function add_failing_notice() returns trigger language plpgsql set search_path from current as $$
begin
  perform add_notice(case new.warning when 'last' then 'disabling' else 'failing' end,
    s.owner, s.account_id, s.client_id, s.id,
    jsonb_build_object('failing_since', new.failing_since, 'disables_at', new.disables_at))
  from subscriptions s where s.lane = new.lane;
  return null;
end $$;

create trigger failing_notice after insert or update on failing_warnings
  for each row execute function add_failing_notice();

create function add_suspension_notice() returns trigger language plpgsql set search_path from current as $$
begin
  perform add_notice('app_suspended', 'client', null, new.id, null, '{}');
  return null;
end $$;

create trigger app_suspended_notice after update on clients
  for each row when (old.suspended_at is null and new.suspended_at is not null)
  execute function add_suspension_notice();

-- The first secret of an app is part of its creation.
create function add_client_secret_notice() returns trigger language plpgsql set search_path from current as $$
begin
  if exists (select from client_secrets where client_id = new.client_id and id <> new.id) then
    perform add_notice('secret_rotated', 'client', null, new.client_id, null, '{}');
  end if;
  return null;
end $$;

create trigger client_secret_notice after insert on client_secrets
  for each row execute function add_client_secret_notice();
