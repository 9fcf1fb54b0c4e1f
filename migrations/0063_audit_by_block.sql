-- Entries come in the order of their time, some thousand a second: the time of whole blocks of them says enough, and costs
-- an entry nothing.

drop index audit_entries_at;
create index audit_entries_at on audit_entries using brin (at);
