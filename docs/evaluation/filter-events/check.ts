/** The same subscription with a reachable URL gets the right events. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createApp, createPublisher } from '../../../test/support/webhooks/apps.ts';
import { startSubscriber } from '../../../test/support/webhooks/subscriber.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ server, folder, after }) => {
  const fields = JSON.parse(await readFile(join(folder, 'subscription.json'), 'utf8'));
  assert.equal(fields.url, 'https://hooks.example.com/invoices');
  assert.equal(fields.ordered, true);
  const subscriber = await startSubscriber({ after });
  const app = await createApp(server);
  const publisher = await createPublisher(server);
  const created = await app.request('POST', '/subscriptions', { json: { ...fields, url: subscriber.url } });
  assert.equal(created.status, 201, created.text);
  const invoices = [
    ['small', 9_999, 'EUR'],
    ['dollars', 20_000, 'USD'],
    ['exact', 10_000, 'EUR'],
    ['large', 90_000, 'EUR'],
  ] as const;
  for (const [id, amount, currency] of invoices) {
    const json = [
      { kind: 'invoice.paid', account: app.account.id, body: { invoice: { id, amount, currency } } },
    ];
    assert.equal((await publisher('POST', '/events', { json })).status, 202);
  }
  const push = { ref: 'refs/heads/main', commits: [], repository: { name: 'example' } };
  await publisher('POST', '/events', { json: [{ kind: 'push', account: app.account.id, body: push }] });
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(body).invoice.id),
    ['exact', 'large'],
  );
};
