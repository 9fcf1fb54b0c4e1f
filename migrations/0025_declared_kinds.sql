-- When a running node last said that it has a kind. Agents are told of a kind that no node has any more. A kind of which no node has
-- said so, because only older versions run, is not in it. Owner: src/webhooks/subscriptions/removed_kinds.ts.
create table declared_kinds (
  name text primary key,
  seen_at timestamptz not null
);

-- An old node that sends the message about a removed kind says that access was revoked, which also ends the subscription.
alter table agent_subscriptions drop constraint agent_subscriptions_end_reason_check;
alter table agent_subscriptions add constraint agent_subscriptions_end_reason_check
  check (end_reason in ('expired', 'unsubscribed', 'revoked', 'removed')) not valid;
