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
  -- A grant's id, or the `jti` of one access token.
  subject text primary key,
  kind text not null check (kind in ('grant', 'token')),
  until timestamptz not null
);

create index withdrawals_until on withdrawals (until);

create function notify_withdrawal() returns trigger language plpgsql as $$
begin
  perform pg_notify('nuncio_withdrawal', new.kind || ':' || new.subject);
  return null;
end $$;

create trigger withdrawal_added after insert on withdrawals
  for each row execute function notify_withdrawal();

-- Whoever withdraws a grant, by whatever statement, stops its access tokens too.
create function list_withdrawn_grant() returns trigger language plpgsql as $$
begin
  insert into withdrawals (subject, kind, until)
  values (old.id::text, 'grant', now() + interval '1 hour')
  on conflict (subject) do nothing;
  return null;
end $$;

create trigger grant_withdrawn after update of withdrawn_at on grants
  for each row when (old.withdrawn_at is null and new.withdrawn_at is not null)
  execute function list_withdrawn_grant();

create trigger grant_deleted after delete on grants
  for each row when (old.withdrawn_at is null)
  execute function list_withdrawn_grant();
