-- What is done to an account stands in the audit log like what is done to a client: made, disabled, enabled, given another
-- password. Written by the database, so that no way around it is left.

create function audit_account() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    insert into audit_entries (kind, account_id) values ('account.created', new.id);
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
  return null;
end $$;

create trigger audit_account_created after insert on accounts
  for each row execute function audit_account();
create trigger audit_account_changed after update of disabled_at, password_hash on accounts
  for each row execute function audit_account();
