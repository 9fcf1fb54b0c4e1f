-- Grants, the withdrawal list and delivery holds. Owner: src/grants.

create table grants (
  id uuid primary key,
  account_id uuid not null references accounts on delete cascade,
  client_id text not null,
  -- The scopes that the user confirmed, sorted.
  scopes text[] not null default '{}',
  -- Further data of the authorization server: rejected scopes, claims, resources.
  details jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- The `updated_at` of the client whose description the user confirmed, now or earlier. Null if the user saw none.
  client_version timestamptz,
  -- When a token was last issued under the grant.
  last_used_at timestamptz,
  withdrawn_at timestamptz,
  withdrawn_reason text,
  -- A grant that loses scopes keeps its refresh tokens, which yield narrower access tokens from then on. Earlier access tokens
  -- have the wider scopes and must become invalid: each contains the revision of its grant, and the withdrawal list contains
  -- the revisions that ended.
  revision integer not null default 0
);

create index grants_of_account on grants (account_id, id) where withdrawn_at is null;
create index grants_of_client on grants (client_id, id) where withdrawn_at is null;

-- The withdrawal list: access tokens that the API rejects although their signature and expiry are valid. A row is needed until
-- all access tokens that it covers have expired.
create table withdrawals (
  kind text not null check (kind in ('grant', 'token', 'client_epoch', 'grant_revision')),
  -- A grant's id, the `jti` of one access token, an epoch, or `<grant id>:<revision>`.
  subject text not null,
  created_at timestamptz not null default clock_timestamp(),
  until timestamptz not null,
  -- Shows each node which rows it has already read.
  transaction_id xid8 not null default pg_current_xact_id(),
  primary key (kind, subject)
);

create index withdrawals_until on withdrawals (until);
create index withdrawals_transaction on withdrawals (transaction_id);

create function notify_withdrawal() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('withdrawal', new.kind || ':' || new.subject);
  return null;
end $$;

create trigger withdrawal_added after insert or update on withdrawals
  for each row execute function notify_withdrawal();

-- Every statement that withdraws a grant also invalidates its access tokens.
create function list_withdrawn_grant() returns trigger language plpgsql set search_path from current as $$
begin
  insert into withdrawals (kind, subject, until)
  values ('grant', old.id::text, now() + interval '1 hour')
  on conflict (kind, subject) do nothing;
  return null;
end $$;

create trigger grant_withdrawn after update of withdrawn_at on grants
  for each row when (old.withdrawn_at is null and new.withdrawn_at is not null)
  execute function list_withdrawn_grant();

create trigger grant_deleted after delete on grants
  for each row when (old.withdrawn_at is null)
  execute function list_withdrawn_grant();

-- Every statement that removes a scope begins a new revision.
create function begin_grant_revision() returns trigger language plpgsql set search_path from current as $$
begin
  new.revision := old.revision + 1;
  return new;
end $$;

create trigger grant_narrowed before update of scopes on grants
  for each row when (new.revision = old.revision and not new.scopes @> old.scopes)
  execute function begin_grant_revision();

create function list_ended_grant_revision() returns trigger language plpgsql set search_path from current as $$
begin
  insert into withdrawals (kind, subject, until)
  values ('grant_revision', old.id || ':' || old.revision, now() + interval '1 hour')
  on conflict (kind, subject) do nothing;
  return null;
end $$;

create trigger grant_revised after update on grants
  for each row when (new.revision <> old.revision)
  execute function list_ended_grant_revision();

-- Deleting or disabling a client withdraws all its grants and tokens.
create function withdraw_grants_of_client() returns trigger language plpgsql set search_path from current as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'client_deleted'
  where client_id = old.id and withdrawn_at is null;
  insert into withdrawals (kind, subject, until)
  values ('client_epoch', old.epoch::text, now() + interval '1 hour')
  on conflict (kind, subject) do update
    set created_at = clock_timestamp(), until = excluded.until, transaction_id = excluded.transaction_id;
  return null;
end $$;

create trigger client_deleted after delete on clients
  for each row execute function withdraw_grants_of_client();

create trigger client_disabled after update of disabled_at on clients
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function withdraw_grants_of_client();

-- Suspending a client invalidates its access tokens for good. Its grants remain.
create function withdraw_tokens_of_client() returns trigger language plpgsql set search_path from current as $$
begin
  insert into withdrawals (kind, subject, until)
  values ('client_epoch', old.epoch::text, now() + interval '1 hour')
  on conflict (kind, subject) do update
    set created_at = clock_timestamp(), until = excluded.until, transaction_id = excluded.transaction_id;
  return null;
end $$;

create trigger client_suspended after update of suspended_at on clients
  for each row when (old.suspended_at is null and new.suspended_at is not null)
  execute function withdraw_tokens_of_client();

create function withdraw_grants_of_account() returns trigger language plpgsql set search_path from current as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'account_disabled'
  where account_id = new.id and withdrawn_at is null;
  return null;
end $$;

create trigger account_disabled after update of disabled_at on accounts
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function withdraw_grants_of_account();

-- Delivery holds: deliveries that no node may start, because the transaction that ends the right to them is about to commit.
-- Unlogged: after a crash of the database that transaction is gone, too. Owner: src/grants/delivery_hold.ts.
create unlogged table delivery_holds (
  id uuid primary key,
  -- Deliveries of a client, of an account, or of a client for one account.
  client_id text,
  account_id uuid,
  -- Or deliveries of one subscription.
  lane bigint,
  -- The hold expires at this time, unless the transaction that requested it is still running.
  until timestamptz not null,
  constraint delivery_holds_subject
    check (num_nonnulls(client_id, account_id, lane) > 0 and (lane is null or num_nonnulls(client_id, account_id) = 0))
);

-- Nodes that have stopped starting such deliveries until the hold ends.
create unlogged table delivery_hold_acknowledgements (
  hold uuid not null,
  node bigint not null,
  primary key (hold, node)
);
