-- The span in which an event was written, as in the header `traceparent` (W3C Trace Context): its deliveries are part
-- of the same trace. Null where nothing is traced.
alter table events add column traceparent text;
