-- A node that lives looks at the database every second and counts that here. Whether it still does is told by the counter
-- and the clocks of the other nodes, not by the time of day. Owner: src/webhooks/lanes/node.ts.

alter table nodes
  -- 0 for nodes of earlier versions, which have their time alone.
  add column looks bigint not null default 0,
  -- As the operator has named it (NUNCIO_NODE_NAME); null where they have not.
  add column name text;
