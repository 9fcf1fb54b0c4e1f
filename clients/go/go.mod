module nuncio.example/verify

go 1.22
