-- Bytes of responses that attempts have stored, by account (or app, for its own subscriptions) and day: past a daily
-- budget attempts are stored without them. Owner: src/webhooks/lanes/attempt_budget.ts.

create table attempt_bytes (
  day date not null,
  -- An account's id, or client:<id>.
  tenant text not null,
  bytes bigint not null,
  primary key (day, tenant)
);

-- Whether headers and body of the response were left out for that reason.
alter table attempts add column response_omitted boolean;
