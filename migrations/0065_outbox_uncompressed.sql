-- A row lives for some milliseconds and holds up to a thousand positions: to compress them takes longer than all the rest
-- of writing it.
alter table outbox alter column positions set storage external;
