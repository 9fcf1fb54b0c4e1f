create role shop login password 'shop';
grant nuncio_publisher to shop;
