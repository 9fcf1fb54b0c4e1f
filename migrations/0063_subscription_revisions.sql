-- What of a subscription decides how its requests look, by revision: the log says by which one an attempt was made.
-- Written by the trigger below alone, whoever changes the subscription.

create table subscription_revisions (
  lane bigint not null references subscriptions (lane) on delete cascade,
  revision integer not null,
  url text not null,
  signature text not null,
  format text not null,
  created_at timestamptz not null default now(),
  primary key (lane, revision)
);

insert into subscription_revisions (lane, revision, url, signature, format, created_at)
select lane, revision, url, signature, format, updated_at from subscriptions;

create function keep_subscription_revision() returns trigger language plpgsql as $$
begin
  insert into subscription_revisions (lane, revision, url, signature, format)
  values (new.lane, new.revision, new.url, new.signature, new.format)
  on conflict (lane, revision) do nothing;
  return null;
end $$;

create trigger subscription_revised after insert or update of revision on subscriptions
  for each row execute function keep_subscription_revision();
