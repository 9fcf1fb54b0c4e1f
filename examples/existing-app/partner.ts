/** Another developer's app. Users of the shop connect it, and it receives their orders. */

import express, { type Express } from 'express';
import * as oidc from 'openid-client';
import { Webhook } from 'standardwebhooks';
import { escapeHtml, page } from './page.ts';

const scope = 'read:orders read:webhooks write:webhooks';

export function createPartner(configuration: oidc.Configuration, nuncioUrl: string, url: string): Express {
  const app = express();
  const redirectUri = `${url}/callback`;
  // One user at a time is enough for the example.
  let pending: { codeVerifier: string; state: string } | undefined;
  let secret: string | undefined;
  const received: string[] = [];

  app.get('/', (_request, response) => {
    const items = received.map((item) => `<li>${escapeHtml(item)}</li>`).join('');
    response.send(
      page(
        'Order watch',
        `<p><a href="/connect">Connect the shop</a></p><h2>Received orders</h2><ul>${items}</ul>`,
      ),
    );
  });

  app.get('/connect', async (_request, response) => {
    const codeVerifier = oidc.randomPKCECodeVerifier();
    pending = { codeVerifier, state: oidc.randomState() };
    const target = oidc.buildAuthorizationUrl(configuration, {
      redirect_uri: redirectUri,
      scope,
      state: pending.state,
      code_challenge: await oidc.calculatePKCECodeChallenge(codeVerifier),
      code_challenge_method: 'S256',
    });
    response.redirect(target.href);
  });

  app.get('/callback', async (request, response) => {
    if (pending === undefined) return response.redirect('/');
    if (request.query.error !== undefined) {
      return response.send(page('Not connected', '<p><a href="/">Back</a></p>'));
    }
    const { codeVerifier: pkceCodeVerifier, state: expectedState } = pending;
    pending = undefined;
    const tokens = await oidc.authorizationCodeGrant(configuration, new URL(request.originalUrl, url), {
      pkceCodeVerifier,
      expectedState,
    });
    const subscription = await fetch(`${nuncioUrl}/subscriptions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${tokens.access_token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ url: `${url}/hooks`, kinds: ['order.placed'], signature: 'standard' }),
    });
    secret = ((await subscription.json()) as { secret: string }).secret;
    return response.redirect('/');
  });

  app.post('/hooks', express.text({ type: '*/*' }), (request, response) => {
    if (secret === undefined) return response.sendStatus(404);
    try {
      new Webhook(secret).verify(request.body, request.headers as Record<string, string>);
    } catch {
      return response.sendStatus(403);
    }
    received.push(JSON.parse(request.body).order.item);
    return response.sendStatus(204);
  });
  return app;
}
