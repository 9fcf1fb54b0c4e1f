-- A grant that loses scopes keeps its refresh tokens, which give narrower access tokens from then on. Access tokens that
-- were issued before carry the wider scopes, so they must die: each names the revision of its grant, and the withdrawal
-- list names revisions that ended. Owner: src/grants.

alter table grants add column revision integer not null default 0;

alter table withdrawals drop constraint withdrawals_kind_check;
-- `grant_revision` has the grant's id and the revision, with a colon between them.
alter table withdrawals add constraint withdrawals_kind_check
  check (kind in ('grant', 'token', 'client', 'client_epoch', 'grant_revision'));

-- Whoever takes a scope away, by whatever statement, begins a revision.
create function begin_grant_revision() returns trigger language plpgsql as $$
begin
  new.revision := old.revision + 1;
  return new;
end $$;

create trigger grant_narrowed before update of scopes on grants
  for each row when (new.revision = old.revision and not new.scopes @> old.scopes)
  execute function begin_grant_revision();

create function list_ended_grant_revision() returns trigger language plpgsql as $$
begin
  insert into withdrawals (kind, subject, until)
  values ('grant_revision', old.id || ':' || old.revision, now() + interval '1 hour')
  on conflict (kind, subject) do nothing;
  return null;
end $$;

create trigger grant_revised after update on grants
  for each row when (new.revision <> old.revision)
  execute function list_ended_grant_revision();
