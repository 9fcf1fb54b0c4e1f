-- Whether an account or a client is disabled is asked for each event, and hardly one is: a look into an index of next to
-- nothing instead of one into all of them and the row.
create index accounts_disabled on accounts (id) where disabled_at is not null;
create index clients_disabled on clients (id) where disabled_at is not null;
