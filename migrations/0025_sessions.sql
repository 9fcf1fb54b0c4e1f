-- What ends with a login session, and identities that their user disconnected.

-- Counts how often all sessions of the account were ended. A sign-in that began before the last time is no longer valid.
-- Owner: src/accounts/account.ts.
alter table accounts add column sign_in_epoch integer not null default 0;

-- Grants of the server's own apps (src/clients/own_clients.ts), which belong to the login session that made them. The foreign key
-- prevents a grant for a session that has just ended. Owner: src/oauth/storage/session.ts.
create table session_grants (
  grant_id uuid primary key references grants on delete cascade,
  session_uid text not null references login_sessions (uid) on delete cascade
);

create index session_grants_session on session_grants (session_uid);

-- Every statement that deletes a session, also because it expired, withdraws these grants.
create function end_grant_of_session() returns trigger language plpgsql set search_path from current as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'session_ended'
  where id = old.grant_id and withdrawn_at is null;
  return null;
end $$;

create trigger session_grant_ended after delete on session_grants
  for each row execute function end_grant_of_session();

-- Grants from before this migration: the session knows the latest of each app. The others have no session that could end.
insert into session_grants (grant_id, session_uid)
select g.id, s.uid
from login_sessions s
cross join lateral jsonb_each(s.payload -> 'authorizations') a
join grants g on g.id::text = a.value ->> 'grantId' and g.account_id = s.account_id and g.client_id = a.key
where a.key in ('nuncio-console', 'nuncio-docs') and g.withdrawn_at is null and s.expires_at > now()
on conflict do nothing;

update grants g set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'session_ended'
where client_id in ('nuncio-console', 'nuncio-docs') and withdrawn_at is null
  and not exists (select from session_grants s where s.grant_id = g.id);

-- Issuers whose identities were disconnected from an account. Their next sign-in does not connect them again by the email
-- address; only the user does. Owner: src/accounts/upstream/identity.ts.
create table disconnected_issuers (
  account_id uuid not null references accounts on delete cascade,
  issuer text collate "C" not null,
  disconnected_at timestamptz not null default now(),
  primary key (account_id, issuer)
);
