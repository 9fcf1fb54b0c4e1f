-- Where a subscription begins, by the order of events: the clock may have been set back or ahead since. An event with a
-- greater position came after the subscription. One with a smaller position may have been committed after it, because
-- transactions overlap: for those the times decide.
alter table subscriptions
  add column created_position bigint not null default coalesce(pg_sequence_last_value('event_positions'), 0);
