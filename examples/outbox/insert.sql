insert into nuncio_outbox (id, kind, external_id, body)
values (gen_random_uuid(), 'invoice.paid', 'user-4711', '{"invoice":{"id":"in_18","amount":1200,"currency":"EUR"}}');
