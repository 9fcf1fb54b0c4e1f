-- What a user lets a client do: the hinge of everything. Owner: src/grants.

create table grants (
  id uuid primary key,
  account_id uuid not null references accounts on delete cascade,
  client_id text not null,
  -- Confirmed by the user, sorted.
  scopes text[] not null default '{}',
  -- What OpenID Connect adds: rejected scopes, claims, resources; the authorization server's own form.
  details jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- Last time that a token was issued by it.
  last_used_at timestamptz,
  withdrawn_at timestamptz,
  withdrawn_reason text
);

create index grants_of_account on grants (account_id) where withdrawn_at is null;
create index grants_of_client on grants (client_id) where withdrawn_at is null;

-- The withdrawal list: what the API must refuse although the token's signature and time are good.
-- Rows are of no use once every access token that they could stop has expired.
create table withdrawals (
  kind text not null check (kind in ('grant', 'token', 'client')),
  -- A grant's id, the `jti` of one access token, or a client's id (its tokens issued until then).
  subject text not null,
  created_at timestamptz not null default clock_timestamp(),
  until timestamptz not null,
  -- By which every node knows what it has seen.
  transaction_id xid8 not null default pg_current_xact_id(),
  primary key (kind, subject)
);

create index withdrawals_until on withdrawals (until);
create index withdrawals_transaction on withdrawals (transaction_id);

create function notify_withdrawal() returns trigger language plpgsql as $$
begin
  perform pg_notify('nuncio_withdrawal', new.kind || ':' || new.subject);
  return null;
end $$;

create trigger withdrawal_added after insert or update on withdrawals
  for each row execute function notify_withdrawal();

-- Whoever withdraws a grant, by whatever statement, stops its access tokens too.
create function list_withdrawn_grant() returns trigger language plpgsql as $$
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

-- With an app go all grants it was given and all tokens it holds.
create function withdraw_grants_of_client() returns trigger language plpgsql as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'client_deleted'
  where client_id = old.id and withdrawn_at is null;
  insert into withdrawals (kind, subject, until)
  values ('client', old.id, now() + interval '1 hour')
  on conflict (kind, subject) do update
    set created_at = clock_timestamp(), until = excluded.until, transaction_id = excluded.transaction_id;
  return null;
end $$;

create trigger client_deleted after delete on clients
  for each row execute function withdraw_grants_of_client();

create trigger client_disabled after update of disabled_at on clients
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function withdraw_grants_of_client();

create function withdraw_grants_of_account() returns trigger language plpgsql as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'account_disabled'
  where account_id = new.id and withdrawn_at is null;
  return null;
end $$;

create trigger account_disabled after update of disabled_at on accounts
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function withdraw_grants_of_account();
