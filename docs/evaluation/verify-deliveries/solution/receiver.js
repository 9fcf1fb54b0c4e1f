import { appendFileSync } from 'node:fs';
import express from 'express';
import { expressVerifier } from 'nuncio/verify';

const app = express();
app.post('/hooks', expressVerifier({ secret: process.env.WEBHOOK_SECRET }), (request, response) => {
  appendFileSync('handled.txt', `${request.body.ref}\n`);
  response.status(204).end();
});
app.listen(process.env.PORT);
