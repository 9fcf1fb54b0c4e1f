-- Sign-in with an upstream OpenID provider. Owner: src/accounts/upstream.

-- Who a provider says somebody is, and the account that this person has here.
create table upstream_identities (
  -- `iss` and `sub` of the provider's ID tokens, compared byte by byte.
  issuer text collate "C" not null check (char_length(issuer) <= 512),
  subject text collate "C" not null check (char_length(subject) between 1 and 255),
  account_id uuid not null references accounts on delete cascade,
  -- Id of the provider in the configuration, as of the last sign-in.
  provider text not null,
  -- How the provider names the user: shown to the user and to administrators, and never compared.
  label text not null,
  created_at timestamptz not null default now(),
  last_used_at timestamptz not null default now(),
  primary key (issuer, subject)
);

create index upstream_identities_account on upstream_identities (account_id);

create function audit_upstream_identity() returns trigger language plpgsql set search_path from current as $$
declare
  subject upstream_identities := case tg_op when 'DELETE' then old else new end;
begin
  insert into audit_entries (kind, account_id, details)
  values (case tg_op when 'DELETE' then 'identity.disconnected' else 'identity.connected' end, subject.account_id,
    jsonb_build_object('provider', subject.provider, 'issuer', subject.issuer));
  return null;
end $$;

create trigger audit_upstream_identity after insert or delete on upstream_identities
  for each row execute function audit_upstream_identity();

-- Sign-ins that are at a provider, or have come back and are not finished.
create table upstream_logins (
  -- Of the cookie of the browser that began it.
  browser_digest bytea primary key,
  -- Of the `state` parameter.
  state_digest bytea not null unique,
  provider text not null,
  -- The authorization request that waits for it; null for the account page.
  interaction_uid text,
  -- The signed-in account that a user connects the provider to; null for a sign-in.
  account_id uuid references accounts on delete cascade,
  -- What the app asked of the time of the sign-in.
  is_fresh boolean not null,
  max_age_seconds integer,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  -- When the browser came back; nobody comes back twice.
  returned_at timestamptz,
  -- What the verified ID token says.
  identity jsonb,
  finished_at timestamptz
);

create index upstream_logins_expiry on upstream_logins (expires_at);
create index upstream_logins_interaction on upstream_logins (interaction_uid) where interaction_uid is not null;
create index upstream_logins_account on upstream_logins (account_id) where account_id is not null;
