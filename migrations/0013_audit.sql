-- The audit log: who let whom do what, and when it ended. Owner: src/audit (what changes in a row of accounts,
-- clients, grants or keys is written here by the database itself, so that no way around it is left).

create table audit_entries (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  -- Like `grant.withdrawn`.
  kind text not null,
  account_id uuid,
  client_id text,
  grant_id uuid,
  details jsonb not null default '{}'
);

create index audit_entries_at on audit_entries (at);

create function audit_grant() returns trigger language plpgsql as $$
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

create function audit_client() returns trigger language plpgsql as $$
begin
  insert into audit_entries (kind, client_id, details)
  values (
    case tg_op when 'INSERT' then 'client.registered' when 'UPDATE' then 'client.changed' else 'client.deleted' end,
    coalesce(new.id, old.id), jsonb_build_object('name', coalesce(new.name, old.name)));
  return null;
end $$;

create trigger audit_client after insert or update or delete on clients
  for each row execute function audit_client();

create function audit_signing_key() returns trigger language plpgsql as $$
begin
  insert into audit_entries (kind, details)
  values ('key.created', jsonb_build_object('kid', new.id, 'algorithm', new.algorithm));
  return null;
end $$;

create trigger audit_signing_key after insert on signing_keys
  for each row execute function audit_signing_key();
