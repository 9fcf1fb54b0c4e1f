-- Accounts of users that another application has: known by that application's own user id. Owner: src/accounts.

alter table accounts
  -- The application's user id, compared byte by byte. Null for accounts that were made here.
  add column external_id text collate "C" unique
    check (char_length(external_id) between 1 and 255 and external_id !~ '[\u0001-\u001f\u007f-\u009f]'),
  -- What the application says of the address. Null where nobody says anything.
  add column email_verified boolean,
  add column updated_at timestamptz not null default now(),
  -- An account that was made by publishing has neither address nor name (the name is then empty).
  alter column email drop not null,
  drop constraint accounts_email_key;

-- People sign in here by their address. Addresses of external accounts are data: nobody signs in by them, and an
-- external account with the address of another account is not linked to it.
create unique index accounts_local_email on accounts (email) where external_id is null;

-- Lists by address: byte by byte, those without an address last.
drop index accounts_by_email;
drop index accounts_disabled_by_email;
create index accounts_by_email on accounts ((coalesce(email, chr(1114111))) collate "C", id);
create index accounts_disabled_by_email on accounts ((coalesce(email, chr(1114111))) collate "C", id)
  where disabled_at is not null;
-- Look-ups by address.
create index accounts_email on accounts (email) where email is not null;

create or replace function audit_account() returns trigger language plpgsql set search_path from current as $$
begin
  if tg_op = 'INSERT' then
    insert into audit_entries (kind, account_id) values ('account.created', new.id);
    return null;
  end if;
  if tg_op = 'DELETE' then
    insert into audit_entries (kind, account_id) values ('account.deleted', old.id);
    return null;
  end if;
  if old.disabled_at is null and new.disabled_at is not null then
    insert into audit_entries (kind, account_id) values ('account.disabled', new.id);
  elsif old.disabled_at is not null and new.disabled_at is null then
    insert into audit_entries (kind, account_id) values ('account.enabled', new.id);
  end if;
  if old.password_hash is distinct from new.password_hash then
    insert into audit_entries (kind, account_id) values ('account.password_changed', new.id);
  end if;
  -- Which of them changed, and not to what: the log outlives the account.
  if (old.email, old.email_verified, old.name, old.external_id)
    is distinct from (new.email, new.email_verified, new.name, new.external_id) then
    insert into audit_entries (kind, account_id, details) values ('account.changed', new.id, jsonb_build_object('members',
      array_remove(array[
        case when old.email is distinct from new.email then 'email' end,
        case when old.email_verified is distinct from new.email_verified then 'email_verified' end,
        case when old.name is distinct from new.name then 'name' end,
        case when old.external_id is distinct from new.external_id then 'external_id' end], null)));
  end if;
  return null;
end $$;

drop trigger audit_account_changed on accounts;
create trigger audit_account_changed
  after update of disabled_at, password_hash, email, email_verified, name, external_id on accounts
  for each row execute function audit_account();
create trigger audit_account_deleted after delete on accounts
  for each row execute function audit_account();

-- A standstill of all deliveries for one account, whichever clients get them.
alter table standstills drop constraint if exists standstills_check;
alter table standstills drop constraint if exists standstills_check1;
alter table standstills add constraint standstills_subject
  check (num_nonnulls(client_id, account_id, lane) > 0 and (lane is null or num_nonnulls(client_id, account_id) = 0));

-- URLs that sign a user in to their account page, made by the application for its own users. A used one becomes a
-- session of that page alone. Owner: src/accounts/account_link.ts.
create table account_links (
  digest bytea primary key,
  account_id uuid not null references accounts on delete cascade,
  client_id text not null,
  return_to text,
  expires_at timestamptz not null,
  used_at timestamptz,
  -- Of the cookie of the browser that used it.
  session_digest bytea unique
);

create index account_links_expiry on account_links (expires_at);
create index account_links_account on account_links (account_id);
