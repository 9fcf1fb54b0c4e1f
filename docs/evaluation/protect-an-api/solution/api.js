import express from 'express';
import { createProtector } from 'nuncio/protect';

const { PORT, NUNCIO_URL, API_URL, CLIENT_ID, CLIENT_SECRET } = process.env;
const protect = createProtector({
  issuer: NUNCIO_URL,
  url: API_URL,
  audience: API_URL,
  clientId: CLIENT_ID,
  clientSecret: CLIENT_SECRET,
  scopes: ['read:reports'],
});

const app = express();
app.use(protect.wellKnown);
app.get('/reports', protect.express('read:reports'), (request, response) => {
  response.json({ account: protect.principal(request).accountId });
});
app.listen(PORT);
