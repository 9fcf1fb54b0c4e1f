begin;
insert into shop.orders (id, customer, cents) values ('order-1', 'customer-7', 4900);
select nuncio.publish(
  'invoice.paid',
  'customer-7',
  '{"invoice": {"id": "order-1", "amount": 4900, "currency": "EUR"}}'
);
commit;
