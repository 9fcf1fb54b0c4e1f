-- Sign-in with an upstream OpenID provider. Owner: src/accounts/upstream.

-- Users of providers, and the accounts that they sign in to.
create table upstream_identities (
  -- `iss` and `sub` of the ID token, compared byte by byte.
  issuer text collate "C" not null check (char_length(issuer) <= 512),
  subject text collate "C" not null check (char_length(subject) between 1 and 255),
  account_id uuid not null references accounts on delete cascade,
  -- Id of the provider in the configuration at the last sign-in.
  provider text not null,
  -- Name of the user at the provider. Only for display, never for comparison.
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

-- Sign-ins with a provider.
create table upstream_logins (
  -- Digest of the secret in the browser's cookie.
  browser_digest bytea primary key,
  -- Digest of the `state` parameter.
  state_digest bytea not null unique,
  provider text not null,
  -- The authorization request; null for the account page.
  interaction_uid text,
  -- The signed-in account to connect the provider to; null for a sign-in.
  account_id uuid references accounts on delete cascade,
  -- `prompt=login` and `max_age` of the app's authorization request.
  is_fresh boolean not null,
  max_age_seconds integer,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  -- When the browser returned from the provider. It can return once.
  returned_at timestamptz,
  -- The verified identity, as JSON.
  identity jsonb,
  finished_at timestamptz
);

create index upstream_logins_expiry on upstream_logins (expires_at);
create index upstream_logins_interaction on upstream_logins (interaction_uid) where interaction_uid is not null;
create index upstream_logins_account on upstream_logins (account_id) where account_id is not null;

-- Issuers whose identities were disconnected from an account. Their next sign-in does not connect them again by the email
-- address; only the user does. Owner: src/accounts/upstream/identity.ts.
create table disconnected_issuers (
  account_id uuid not null references accounts on delete cascade,
  issuer text collate "C" not null,
  disconnected_at timestamptz not null default now(),
  primary key (account_id, issuer)
);
