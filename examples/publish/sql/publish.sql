-- Publishes from plain SQL in the transaction of a change: psql "$DATABASE_URL" -v customer=<user id> -f publish.sql
\set ON_ERROR_STOP on

begin;
insert into invoices (id, customer, cents) values ('sql-1', :'customer', 1200);
select nuncio.publish('invoice.paid', :'customer', '{"invoice": {"id": "sql-1", "amount": 1200, "currency": "EUR"}}');
commit;

-- A rollback publishes nothing.
begin;
insert into invoices (id, customer, cents) values ('sql-2', :'customer', 1200);
select nuncio.publish('invoice.paid', :'customer', '{"invoice": {"id": "sql-2", "amount": 1200, "currency": "EUR"}}');
rollback;

-- Many events in one statement, selected from the data.
begin;
with paid as (
  insert into invoices (id, customer, cents)
  select 'sql-' || number, :'customer', 100 from generate_series(3, 102) as number
  returning id, customer, cents
)
select count(nuncio.publish('invoice.paid', customer,
  jsonb_build_object('invoice', jsonb_build_object('id', id, 'amount', cents, 'currency', 'EUR'))))
from paid;
commit;
