npx nuncio dev
