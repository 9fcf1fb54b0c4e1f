import { randomUUID } from 'node:crypto';
import express from 'express';
import * as client from 'openid-client';

const { PORT, NUNCIO_URL, CLIENT_ID, CLIENT_SECRET } = process.env;
const options = NUNCIO_URL.startsWith('http:') ? { execute: [client.allowInsecureRequests] } : {};
const config = await client.discovery(new URL(NUNCIO_URL), CLIENT_ID, CLIENT_SECRET, undefined, options);
const origin = `http://localhost:${PORT}`;
const sessions = new Map();

const app = express();
const sessionOf = (request) =>
  sessions.get(/(?:^|; )session=([^;]+)/.exec(request.headers.cookie ?? '')?.[1]);

app.get('/login', async (_request, response) => {
  const id = randomUUID();
  const verifier = client.randomPKCECodeVerifier();
  const state = client.randomState();
  sessions.set(id, { verifier, state });
  const url = client.buildAuthorizationUrl(config, {
    redirect_uri: `${origin}/callback`,
    scope: 'read:posts',
    code_challenge: await client.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    state,
  });
  response.cookie('session', id, { httpOnly: true, sameSite: 'lax' });
  response.redirect(url.href);
});

app.get('/callback', async (request, response) => {
  const session = sessionOf(request);
  if (session === undefined) return response.status(400).end();
  const tokens = await client
    .authorizationCodeGrant(config, new URL(request.url, origin), {
      pkceCodeVerifier: session.verifier,
      expectedState: session.state,
    })
    .catch(() => undefined);
  if (tokens === undefined) return response.status(400).end();
  const answer = await client.fetchProtectedResource(
    config,
    tokens.access_token,
    new URL('/api', NUNCIO_URL),
    'GET',
  );
  session.account = (await answer.json()).account.id;
  response.redirect('/');
});

app.get('/', (request, response) => {
  const account = sessionOf(request)?.account;
  if (account === undefined) return response.status(401).end();
  response.json({ account });
});

app.listen(PORT);
