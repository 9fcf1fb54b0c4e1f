-- Who created an app. The apps that an account created share as one tenant what they use for themselves: otherwise one account with fifty apps would
-- have the shares of fifty. Stays when the account leaves the app, or is deleted: whoever hands over apps to create more gets no more shares. Apps of
-- the operator, and of administrators, have none. Owner: src/apps.

create table app_creators (
  client_id text primary key references clients on delete cascade,
  account_id uuid not null
);

-- Of earlier apps, the owner that has been one for longest.
insert into app_creators (client_id, account_id)
select first.client_id, first.account_id
from (
  select distinct on (m.client_id) m.client_id, m.account_id
  from app_members m join clients c on c.id = m.client_id
  where c.origin = 'account' and m.role = 'owner'
  order by m.client_id, m.created_at, m.account_id
) as first
join accounts a on a.id = first.account_id
where not a.is_admin;
