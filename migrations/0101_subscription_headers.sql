-- Static headers of a subscription. Their values are sealed; their names are shown, also in the log of attempts.

alter table subscriptions
  -- JSON of pairs, sealed; null for none.
  add column headers bytea,
  add column header_names text[] not null default '{}';

alter table subscription_revisions add column header_names text[] not null default '{}';

create or replace function keep_subscription_revision() returns trigger language plpgsql as $$
begin
  insert into subscription_revisions (lane, revision, url, signature, format, header_names)
  values (new.lane, new.revision, new.url, new.signature, new.format, new.header_names)
  on conflict (lane, revision) do nothing;
  return null;
end $$;
