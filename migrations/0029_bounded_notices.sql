-- How many notices wait for a mail. An app that changes its secrets all the time made a row of each change for each member: the digests of everybody
-- waited for those of a few accounts. Owner: src/notices/digest.ts.

-- squawk-ignore require-concurrent-index-creation
create index notices_of_subject on notices (account_id, kind, coalesce(client_id, ''), subscription_id) where mail_id is null;

-- Adds a notice for the user of a subscription, or for the members of an app. Users of an app get none about its subscriptions. What waits to be told
-- already is not added again, and of one app, or of a user's own subscriptions, a hundred notices of a kind wait: a mail lists twenty.
create or replace function add_notice(of_kind text, subject_owner text, of_account uuid, of_client text, of_subscription uuid, more jsonb)
returns void language sql set search_path from current as $$
  insert into notices (account_id, kind, client_id, subscription_id, details)
  select a.id, of_kind, case when subject_owner = 'client' then of_client end, of_subscription, more
  from accounts a
  where a.disabled_at is null and a.email is not null
    and a.id in (
      select of_account where subject_owner = 'user'
      union all
      select m.account_id from app_members m where subject_owner = 'client' and m.client_id = of_client)
    and not exists (select from declined_notices d where d.account_id = a.id and d.kind = of_kind)
    and (
      select count(*) filter (where waiting.subscription_id is not distinct from of_subscription and waiting.details = more) = 0
        and count(*) < 100
      from (
        select n.subscription_id, n.details from notices n
        where n.account_id = a.id and n.kind = of_kind and n.mail_id is null
          and coalesce(n.client_id, '') = case when subject_owner = 'client' then of_client else '' end
        limit 100
      ) as waiting
    )
$$;
