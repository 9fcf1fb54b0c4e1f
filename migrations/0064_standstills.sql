-- Deliveries that no node starts for now: what ends the right to them is about to commit. Owner:
-- src/grants/standstill.ts. Unlogged: what they wait for does not outlive the database's sessions either.

create unlogged table standstills (
  id uuid primary key,
  -- The deliveries of a client: of what it does for one account, or, without one, all of them.
  client_id text,
  account_id uuid,
  -- Or those of one subscription.
  lane bigint,
  -- After which whoever asked for it is taken to be gone, unless its transaction still runs.
  until timestamptz not null,
  check ((client_id is null) <> (lane is null)),
  check (account_id is null or client_id is not null)
);

-- The nodes that have started nothing since and will start nothing until it is over.
create unlogged table standstill_answers (
  standstill uuid not null,
  node bigint not null,
  primary key (standstill, node)
);
