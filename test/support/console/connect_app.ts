/** Connects an app that the console has just created, as its developer would with a program of their own. */

import assert from 'node:assert/strict';
import { sql } from 'kysely';
import type { Page } from 'playwright-core';
import { authorizationUrl, createPkce, postForm } from '../clients/oauth.ts';
import type { TestServer } from '../servers/server.ts';

/**
 * Confirms the new secret of the app, and lets the signed-in user allow the app in another tab.
 * @param page the page of the app
 * @returns the tab, at the redirect URI, and the access token
 */
export async function connectApp(
  page: Page,
  server: Pick<TestServer, 'baseUrl' | 'db'>,
  redirectUri: string,
): Promise<{ consent: Page; accessToken: string }> {
  const secret = await page.getByRole('status').locator('.secret code').textContent();
  await page.getByRole('button', { name: 'I saved it', exact: true }).click();
  const id = new URL(page.url()).pathname.split('/').at(-1) as string;
  const { rows } = await sql<{ scopes: string[] }>`select scopes from clients where id = ${id}`.execute(
    server.db,
  );
  const { verifier, challenge } = createPkce();
  const consent = await page.context().newPage();
  await consent.goto(
    authorizationUrl(
      server,
      { id, redirectUri },
      {
        scope: rows[0]?.scopes.join(' '),
        code_challenge: challenge,
        code_challenge_method: 'S256',
      },
    ),
  );
  await consent.getByRole('button', { name: 'Allow' }).click();
  await consent.waitForURL((url) => url.href.startsWith(redirectUri));
  const client = { id, secret, authMethod: 'client_secret_basic' } as const;
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code: new URL(consent.url()).searchParams.get('code') ?? '',
    code_verifier: verifier,
    redirect_uri: redirectUri,
  });
  assert.equal(status, 200, JSON.stringify(body));
  return { consent, accessToken: body.access_token as string };
}
