-- Recoveries also bring what was there before the subscription was. Owner: src/webhooks/fan_out/recovery.ts.

alter table recoveries
  -- resending (through the lane's deliveries) → missing (through the events of the time before) → done
  add column phase text not null default 'resending' check (phase in ('resending', 'missing')),
  -- How far the events were looked through: the day, and the last position within it.
  add column missing_day date,
  add column missing_position bigint not null default 0,
  -- Deliveries that were made of events from before.
  add column added bigint not null default 0;
