-- An epoch is the time from a client's registration until it is deleted or disabled. Each access token names the epoch
-- that it was issued in, and the withdrawal list names epochs that ended. So the database alone decides which tokens of a
-- client are dead: no clock is compared, neither that of the node that issued a token nor that of the node that checks it.

alter table clients add column epoch uuid not null default gen_random_uuid();

alter table withdrawals drop constraint withdrawals_kind_check;
-- `client` concerns tokens that name no epoch: they were issued before there were any.
alter table withdrawals add constraint withdrawals_kind_check check (kind in ('grant', 'token', 'client', 'client_epoch'));

create function begin_client_epoch() returns trigger language plpgsql as $$
begin
  new.epoch := gen_random_uuid();
  return new;
end $$;

create trigger client_disabled_begins_epoch before update of disabled_at on clients
  for each row when (old.disabled_at is null and new.disabled_at is not null)
  execute function begin_client_epoch();

create or replace function withdraw_grants_of_client() returns trigger language plpgsql as $$
begin
  update grants set withdrawn_at = now(), updated_at = now(), withdrawn_reason = 'client_deleted'
  where client_id = old.id and withdrawn_at is null;
  insert into withdrawals (kind, subject, until)
  values ('client', old.id, now() + interval '1 hour'), ('client_epoch', old.epoch::text, now() + interval '1 hour')
  on conflict (kind, subject) do update
    set created_at = clock_timestamp(), until = excluded.until, transaction_id = excluded.transaction_id;
  return null;
end $$;
