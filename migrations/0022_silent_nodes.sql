-- Silent nodes. A node without a heartbeat for some seconds starts nothing until it reads the database again. The nodes that observe
-- it record this, so that a withdrawal need not wait to observe it by itself. Owner: src/webhooks/lanes/node.ts.
alter table nodes
  -- The heartbeat counter at which another node found this one silent. The node is silent while its counter still has this value.
  add column silent_looks bigint,
  -- The epoch of that observation. After a failover, a counter can have an earlier value again.
  add column silent_epoch uuid;
