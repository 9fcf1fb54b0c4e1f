/** Tenants whose hosts have one address, such as that of a content delivery network. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createGuardedFetch } from '../../../src/egress/fetch.ts';
import { takeHandshakeTurn } from '../../../src/egress/tls_turns.ts';
import type { ExchangeResult } from '../../../src/webhooks/sending/exchange.ts';
import { Sender } from '../../../src/webhooks/sending/sender.ts';
import { siteEgress, startSite } from '../../support/network/site.ts';

test('attack: a tenant whose handshakes never end at an address delays those of no other tenant there', async (t) => {
  const site = await startSite(t);
  site.serve('/hooks', { status: 200 });
  site.serve('/document', { status: 200, body: 'text' });
  const egress = { ...siteEgress, allowLoopback: true };
  const sender = new Sender(egress);
  t.after(() => sender.close());
  const guarded = createGuardedFetch(egress, { timeoutMs: 60_000 });
  t.after(() => guarded.close());
  const { port, origin } = new URL(site.url('/hooks'));
  let isOver = false;
  t.after(() => {
    isOver = true;
  });
  const peer = { address: '127.0.0.1', port: Number(port), user: { tenant: 'hostile' } };
  const shakeAgain = (): void => {
    if (!isOver) takeHandshakeTurn(peer, shakeAgain);
  };
  for (let count = 0; count < 100; count += 1) shakeAgain();
  const send = (tenant: string) =>
    new Promise<ExchangeResult>((resolve) => {
      const request = { origin, path: '/hooks', headers: '', body: Buffer.from('{}'), traced: null, tenant };
      sender.send(request, resolve, undefined, { timeoutMs: 60_000 });
    });
  let hasWaited = true;
  const own = send('hostile').then((result) => {
    hasWaited = isOver;
    return result;
  });
  assert.equal((await send('other')).status, 200);
  const document = await guarded.fetch(site.url('/document'), { tenant: 'another' });
  assert.equal(await document.text(), 'text');
  isOver = true;
  assert.equal((await own).status, 200);
  assert.ok(hasWaited, 'the last of a hundred in the queue of its tenant');
});
