-- What lists of the administration are read by.

-- By the address, byte by byte, so that a prefix is a range.
create index accounts_by_email on accounts (email collate "C");
create index accounts_disabled_by_email on accounts (email collate "C") where disabled_at is not null;

create index clients_by_creation on clients (created_at desc, id desc);
create index clients_by_name on clients ((lower(name)) collate "C", id);

drop index grants_of_client;
create index grants_of_client on grants (client_id, id) where withdrawn_at is null;
drop index grants_of_account;
create index grants_of_account on grants (account_id, id) where withdrawn_at is null;

drop index subscriptions_of_client;
create index subscriptions_of_client on subscriptions (client_id, id) where state <> 'ended';

create index failing_warnings_next on failing_warnings (disables_at, lane);

-- Entries of single tokens are thousands a second: what is looked for is mostly the rest.
create index audit_entries_of_account on audit_entries (account_id, id)
  where account_id is not null and kind !~~ 'token.%';
create index audit_entries_of_client on audit_entries (client_id, id)
  where client_id is not null and kind !~~ 'token.%';

-- The first entry that is not older than a time. Entries come in the order of their time, but for those that waited a
-- moment to be written together.
create function audit_entry_at(wanted timestamptz) returns bigint language plpgsql stable as $$
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
