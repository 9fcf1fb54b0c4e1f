-- The audit log. Triggers write the entries for accounts, clients, grants, keys and subscriptions, so that no statement can
-- bypass it. Owner: src/audit.

create table audit_entries (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  -- Such as `grant.withdrawn`.
  kind text not null,
  account_id uuid,
  client_id text,
  grant_id uuid,
  details jsonb not null default '{}',
  -- Who made the change, for requests to the management API: an account id or `client:<id>`. The transaction passes it in the
  -- setting `nuncio.actor`.
  actor text default nullif(current_setting('nuncio.actor', true), '')
);

-- Thousands of entries per second arrive almost in the order of time. A BRIN index suffices and adds almost no cost to an insert.
create index audit_entries_at on audit_entries using brin (at);
-- Entries of single tokens are excluded: they are the most frequent, and most queries are for other entries.
create index audit_entries_of_account on audit_entries (account_id, id)
  where account_id is not null and kind !~~ 'token.%';
create index audit_entries_of_client on audit_entries (client_id, id)
  where client_id is not null and kind !~~ 'token.%';

-- Returns the first entry that is not older than a time. Entries are almost ordered by time; some are delayed briefly to be
-- written in a batch.
create function audit_entry_at(wanted timestamptz) returns bigint
language plpgsql stable set search_path from current as $$
declare
  low bigint;
  high bigint;
  middle bigint;
  found_at timestamptz;
begin
  select min(id), max(id) + 1 into low, high from audit_entries;
  while low < high loop
    middle := (low + high) / 2;
    select at into found_at from audit_entries where id >= middle order by id limit 1;
    if found_at is null or found_at >= wanted then high := middle; else low := middle + 1; end if;
  end loop;
  return low;
end $$;

create function audit_account() returns trigger language plpgsql set search_path from current as $$
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
  -- Record which members changed but not their values, because the log outlives the account.
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

create trigger audit_account_created after insert on accounts
  for each row execute function audit_account();
create trigger audit_account_changed
  after update of disabled_at, password_hash, email, email_verified, name, external_id on accounts
  for each row execute function audit_account();
create trigger audit_account_deleted after delete on accounts
  for each row execute function audit_account();

create function audit_client() returns trigger language plpgsql set search_path from current as $$
begin
  insert into audit_entries (kind, client_id, details)
  values (
    case tg_op when 'INSERT' then 'client.registered' when 'UPDATE' then 'client.changed' else 'client.deleted' end,
    coalesce(new.id, old.id), jsonb_build_object('name', coalesce(new.name, old.name)));
  return null;
end $$;

create trigger audit_client after insert or update or delete on clients
  for each row execute function audit_client();

create function audit_grant() returns trigger language plpgsql set search_path from current as $$
begin
  if tg_op = 'INSERT' then
    insert into audit_entries (kind, account_id, client_id, grant_id, details)
    values ('grant.created', new.account_id, new.client_id, new.id, jsonb_build_object('scopes', new.scopes));
  else
    insert into audit_entries (kind, account_id, client_id, grant_id, details)
    values ('grant.withdrawn', new.account_id, new.client_id, new.id,
      jsonb_build_object('reason', new.withdrawn_reason));
  end if;
  return null;
end $$;

create trigger audit_grant_created after insert on grants
  for each row execute function audit_grant();
create trigger audit_grant_withdrawn after update of withdrawn_at on grants
  for each row when (old.withdrawn_at is null and new.withdrawn_at is not null)
  execute function audit_grant();

create function audit_signing_key() returns trigger language plpgsql set search_path from current as $$
begin
  insert into audit_entries (kind, details)
  values ('key.created', jsonb_build_object('kid', new.id, 'algorithm', new.algorithm));
  return null;
end $$;

create trigger audit_signing_key after insert on signing_keys
  for each row execute function audit_signing_key();

create function audit_subscription() returns trigger language plpgsql set search_path from current as $$
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
