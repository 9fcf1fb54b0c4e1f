/** The program runs, more events come, and it runs again. */

import assert from 'node:assert/strict';
import { requester } from '../../../test/support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../../test/support/clients/oauth.ts';
import {
  appScopes,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
} from '../../../test/support/webhooks/apps.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ server, run, lines }) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: appScopes });
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
  const request = requester(server, accessToken);
  const publisher = await createPublisher(server);
  const { id } = await subscribe({ request }, { url: null, kinds: ['push'] });
  const env = { NUNCIO_URL: server.baseUrl, TOKEN: accessToken, SUBSCRIPTION: id };
  let published = 0;
  for (const count of [1_203, 0, 40]) {
    for (let left = count; left > 0; left -= 500) {
      const marks = Array.from({ length: Math.min(left, 500) }, () => ++published);
      await publish(publisher, account, marks);
    }
    await fannedOut(server);
    await run('catch_up.js', env);
    const events = (await lines('events.jsonl')).map((line) => JSON.parse(line));
    assert.deepEqual(
      events.map(({ sequence, kind, body }) => [sequence, kind, body.ref]),
      Array.from({ length: published }, (_, index) => [index + 1, 'push', `refs/heads/${index + 1}`]),
    );
  }
};
