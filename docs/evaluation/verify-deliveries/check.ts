/** Genuine deliveries of the server, and altered, unsigned and recorded ones. */

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { freePort } from '../../../test/support/servers/server.ts';
import {
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../../test/support/webhooks/apps.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ server, start, lines }) => {
  const port = String(await freePort());
  const url = `http://127.0.0.1:${port}/hooks`;
  const app = await createApp(server);
  const publisher = await createPublisher(server);
  const { secret } = await subscribe(app, { url, kinds: ['push'] });
  await start('receiver.js', { PORT: port, WEBHOOK_SECRET: secret });

  await publish(publisher, app.account, ['genuine']);
  await until(
    () => lines('handled.txt'),
    (found) => found.length > 0,
  );
  const now = Math.floor(Date.now() / 1_000);
  const body = JSON.stringify({ ref: 'forged', commits: [], repository: { name: 'example' } });
  const sign = (key: string, time: number, signed = body) =>
    `t=${time},v1=${createHmac('sha256', key).update(`${time}.${signed}`).digest('hex')}`;
  const forgeries: Record<string, string>[] = [
    {},
    { 'nuncio-signature': sign('whsec_another', now) },
    { 'nuncio-signature': sign(secret, now - 3_600) },
    { 'nuncio-signature': sign(secret, now, '{}') },
  ];
  for (const signature of forgeries) {
    const headers = {
      'content-type': 'application/json',
      'nuncio-delivery': '01982f3e-8d2a-8c3b-8f4d-2f6b8f0f5a11',
      'nuncio-event': 'push',
      'nuncio-sequence': '2',
      ...signature,
    };
    const { status } = await fetch(url, { method: 'POST', headers, body });
    assert.ok(status >= 400, `a forged request got ${status}`);
  }
  assert.deepEqual(await lines('handled.txt'), ['refs/heads/genuine']);
};
