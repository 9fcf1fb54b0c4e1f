-- The withdrawal list with very many entries. A node reads it in pages, in the order of this index. Whatever ends many grants
-- works on all of them in a few statements and sends few notifications. Owners: src/grants, src/webhooks/subscriptions, src/audit.

-- The table holds the entries of about an hour. The index withdrawals_transaction remains for nodes of the earlier version.
-- squawk-ignore require-concurrent-index-creation
create index withdrawals_read on withdrawals (transaction_id, kind, subject);

-- PostgreSQL sends equal notifications of a transaction once. What they are about is in the table.
create or replace function notify_withdrawal() returns trigger language plpgsql set search_path from current as $$
begin
  perform announce('withdrawal', '');
  return null;
end $$;

create or replace trigger withdrawal_added after insert or update on withdrawals
  for each statement execute function notify_withdrawal();

-- The functions below join the rows before and after a statement. A plan is made for the first statement, which may change one
-- row, and is used for later ones with very many: so not with a nested loop.

-- Every statement that withdraws grants also invalidates their access tokens.
--
-- A grant that ends with its client needs no entry: each access token contains an epoch of the client, and the end of a client
-- lists that epoch in the same transaction. Checked here, because the reason alone is only a text.
create function list_withdrawn_grants() returns trigger language plpgsql
set search_path from current set enable_nestloop = off as $$
begin
  insert into withdrawals (kind, subject, until)
  select 'grant', g.id::text, now() + interval '1 hour'
  from old_grants o
  join new_grants g on g.id = o.id
  where o.withdrawn_at is null and g.withdrawn_at is not null
    and (g.withdrawn_reason is distinct from 'client_deleted'
      or exists (select from clients c where c.id = g.client_id and c.disabled_at is null))
  on conflict (kind, subject) do nothing;
  return null;
end $$;

create or replace trigger grant_withdrawn after update on grants
  referencing old table as old_grants new table as new_grants
  for each statement execute function list_withdrawn_grants();

create function list_deleted_grants() returns trigger language plpgsql set search_path from current as $$
begin
  insert into withdrawals (kind, subject, until)
  select 'grant', id::text, now() + interval '1 hour' from old_grants where withdrawn_at is null
  on conflict (kind, subject) do nothing;
  return null;
end $$;

create or replace trigger grant_deleted after delete on grants
  referencing old table as old_grants
  for each statement execute function list_deleted_grants();

-- Subscriptions end in the transaction that withdraws their grant, whichever statement withdraws it. A client's own
-- subscriptions continue without the events of that account.
create function end_subscriptions_of_grants() returns trigger language plpgsql
set search_path from current set enable_nestloop = off as $$
declare
  lanes_of_ended bigint[];
  clients_of_ended text[];
begin
  -- One look-up in the index for each grant.
  if tg_op = 'DELETE' then
    select array_agg(distinct e.client_id), array_agg(e.lane) filter (where e.lane is not null)
    into clients_of_ended, lanes_of_ended
    from (
      select o.client_id, unnest(coalesce((
        select array_agg(s.lane) from subscriptions s where s.grant_id = o.id and s.state <> 'ended'), '{null}')) as lane
      from old_grants o) e;
  else
    select array_agg(distinct e.client_id), array_agg(e.lane) filter (where e.lane is not null)
    into clients_of_ended, lanes_of_ended
    from (
      select g.client_id, unnest(coalesce((
        select array_agg(s.lane) from subscriptions s where s.grant_id = g.id and s.state <> 'ended'), '{null}')) as lane
      from old_grants o join new_grants g on g.id = o.id
      where o.withdrawn_at is null and g.withdrawn_at is not null) e;
  end if;
  update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
  where lane = any(lanes_of_ended) and state <> 'ended';
  perform announce('lane_changed', 'client:' || client)
  from unnest(clients_of_ended) as client
  where exists (select from subscriptions where client_id = client and owner = 'client' and state <> 'ended');
  return null;
end $$;

create or replace trigger grant_withdrawn_ends_subscriptions after update on grants
  referencing old table as old_grants new table as new_grants
  for each statement execute function end_subscriptions_of_grants();

create or replace trigger grant_deleted_ends_subscriptions after delete on grants
  referencing old table as old_grants
  for each statement execute function end_subscriptions_of_grants();

create function audit_withdrawn_grants() returns trigger language plpgsql
set search_path from current set enable_nestloop = off as $$
begin
  insert into audit_entries (kind, account_id, client_id, grant_id, details)
  select 'grant.withdrawn', g.account_id, g.client_id, g.id, jsonb_build_object('reason', g.withdrawn_reason)
  from old_grants o join new_grants g on g.id = o.id
  where o.withdrawn_at is null and g.withdrawn_at is not null
  order by g.id;
  return null;
end $$;

create or replace trigger audit_grant_withdrawn after update on grants
  referencing old table as old_grants new table as new_grants
  for each statement execute function audit_withdrawn_grants();
