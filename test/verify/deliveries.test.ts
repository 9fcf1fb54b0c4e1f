/** Deliveries of a real server, in every format, verified with the headers and the body in the shapes of frameworks. */

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import {
  type DeliveryHeaders,
  fromLambda,
  fromRequest,
  type PublicKeyList,
  type VerificationError,
  verify,
} from '../../src/verify/verify.ts';
import { rotateDeliveryKey } from '../../src/webhooks/sending/delivery_key.ts';
import { headerPresets } from '../../src/webhooks/settings.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { type App, createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { type Received, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const formats = ['timestamp', 'sha256', 'standard', 'ed25519'] as const;
const publicKeys = new URL(`${server.baseUrl}/meta`);

interface Case {
  app: App;
  received: Received;
  secret: string;
}

async function deliver(signature: (typeof formats)[number], format = 'json'): Promise<Case> {
  const subscriber = await startSubscriber({ after });
  const app = await createApp(server);
  const { secret } = await subscribe(app, { url: subscriber.url, signature, format });
  await publish(publisher, app.account, ['Zoë 🚀']);
  const [received] = (await subscriber.waitFor(1)) as [Received];
  return { app, received, secret };
}

const withCode = (code: string) => (error: VerificationError) => error.code === code;

for (const signature of formats) {
  const keys = (secret: string) => (signature === 'ed25519' ? { publicKeys } : { secret });

  test(`verify returns the facts of a delivery signed by ${signature}`, async () => {
    for (const format of ['json', 'cloudevents']) {
      const { app, received, secret } = await deliver(signature, format);
      const { headers, body } = received;
      const delivery = await verify({ headers, body, ...keys(secret) });
      assert.deepEqual(delivery, {
        id: headers['nuncio-delivery'] ?? headers['webhook-id'],
        kind: 'push',
        sequence: 1,
        timestamp: delivery.timestamp,
        account: app.account.id,
      });
      assert.equal(delivery.timestamp === null, signature === 'sha256');
      if (delivery.timestamp !== null) assert.ok(Math.abs(delivery.timestamp - received.at / 1_000) < 60);
    }
  });

  test(`verify finds the headers of a delivery signed by ${signature} in any shape`, async () => {
    const { received, secret } = await deliver(signature);
    const { body } = received;
    const headers = received.headers as Record<string, string>;
    const entries = Object.entries(headers);
    const named = (spell: (name: string) => string) =>
      Object.fromEntries(entries.map(([name, value]) => [spell(name), value]));
    const lists = Object.fromEntries(entries.map(([name, value]) => [name, [value]]));
    const shapes: DeliveryHeaders[] = [
      headers,
      named((name) => name.toUpperCase()),
      named((name) => name.replaceAll(/\b[a-z]/g, (letter) => letter.toUpperCase())),
      lists,
      new Headers(headers),
      new Map(entries),
      entries,
      Object.assign(Object.create(null), headers),
      { headers },
      { headers: null, multiValueHeaders: lists },
      {
        ...JSON.parse('{"__proto__": "x", "constructor": "y", "toString": "z"}'),
        ...headers,
        none: undefined,
      },
    ];
    for (const shape of shapes) await verify({ headers: shape, body, ...keys(secret) });
    const bytes = Buffer.from(body);
    const copy = new Uint8Array(bytes);
    for (const each of [bytes, copy, copy.buffer, new DataView(copy.buffer)])
      await verify({ headers, body: each, ...keys(secret) });
  });

  test(`verify refuses a manipulated delivery signed by ${signature}`, async () => {
    const { received, secret } = await deliver(signature);
    const headers = received.headers as Record<string, string>;
    const isStandard = signature === 'standard' || signature === 'ed25519';
    const name = isStandard ? 'webhook-signature' : 'nuncio-signature';
    const value = headers[name] as string;
    const unmatched = signature === 'ed25519' ? 'unknown-key' : 'no-matching-secret';
    const refused = (code: string, changed: Partial<Received>, given: object = keys(secret)) => {
      const options = { headers, body: received.body, ...changed, ...given } as Parameters<typeof verify>[0];
      return assert.rejects(verify(options), withCode(code), JSON.stringify(changed));
    };
    await refused(unmatched, { body: received.body.replace('example', 'changed') });
    await refused(unmatched, { body: '' });
    await refused('missing-header', { headers: { ...headers, [name]: undefined } });
    if (signature !== 'ed25519') await refused(unmatched, {}, { secret: makeSecret() });
    for (const text of ['', ',', '=', 'v1', 'v1a', 't', 't=x,v1=zz', `t=${'9'.repeat(40)},v1=0`, 'é'])
      await refused('malformed-header', { headers: { ...headers, [name]: text } });
    // A header that came twice.
    await refused('malformed-header', {
      headers: { ...headers, [isStandard ? 'webhook-id' : name]: [value, value] as never },
    });
    if (isStandard) await refused(unmatched, { headers: { ...headers, 'webhook-id': 'another' } });
  });
}

test('during a rotation the old and the new secret verify', async () => {
  for (const signature of ['timestamp', 'sha256', 'standard'] as const) {
    const subscriber = await startSubscriber({ after });
    const app = await createApp(server);
    const { id, secret: old } = await subscribe(app, { url: subscriber.url, signature });
    const rotated = await app.request('POST', `/subscriptions/${id}/rotate-secret`, {
      json: { overlap: 600 },
    });
    const { secret } = rotated.body;
    await publish(publisher, app.account, ['rotated']);
    const [{ headers, body }] = (await subscriber.waitFor(1)) as [Received];
    await verify({ headers, body, secret: old });
    await verify({ headers, body, secrets: [secret, old] });
    await verify({ headers, body, secret, secrets: [makeSecret(), old] });
    if (signature !== 'sha256') await verify({ headers, body, secret });
  }
});

test('presets of header names are those of the server, and /meta has them', async () => {
  for (const preset of ['nuncio', 'github', 'stripe'] as const) {
    const { received, secret } = await deliver('timestamp');
    const names = headerPresets[preset];
    const { event, delivery, signature, sequence, account } = names;
    const { headers: came, body } = received;
    const headers = {
      [event]: came['nuncio-event'],
      [delivery]: came['nuncio-delivery'],
      [signature]: came['nuncio-signature'],
      [sequence]: came['nuncio-sequence'],
      [account]: came['nuncio-account'],
    };
    const verified = await verify({ headers, body, secret, headerNames: preset });
    assert.deepEqual(await verify({ headers, body, secret, headerNames: names }), verified);
  }
  const { received, secret } = await deliver('timestamp');
  const { headers: headerNames } = (await (await fetch(publicKeys)).json()) as { headers: object };
  await verify({ ...received, secret, headerNames });
});

test('public keys are taken as /meta shows them', async () => {
  const { received } = await deliver('ed25519');
  const meta = (await (await fetch(publicKeys)).json()) as { public_keys: { key: string; kid: string }[] };
  const [first] = meta.public_keys as [{ key: string; kid: string }];
  const lists: PublicKeyList[] = [meta, meta.public_keys, [first.key], first.key];
  for (const list of lists) {
    await verify({ ...received, publicKeys: list });
    await verify({ ...received, publicKeys: () => list });
    await verify({ ...received, publicKeys: async () => list });
  }
  await verify({ ...received, publicKeys: publicKeys.href });
});

test('a new key is found by loading the keys again, at most once in 30 seconds', async (t) => {
  const { received, app } = await deliver('ed25519');
  let loads = 0;
  const load = async () => {
    loads += 1;
    return (await (await fetch(publicKeys)).json()) as PublicKeyList;
  };
  const check = ({ headers, body }: Received) => verify({ headers, body, publicKeys: load, tolerance: 1e6 });
  await check(received);
  assert.equal(loads, 1);

  const subscriber = await startSubscriber({ after });
  await subscribe(app, { url: subscriber.url, signature: 'ed25519' });
  await rotateDeliveryKey(server.db, testSecret, 0);
  // Without the ten minutes before a new key signs, it may sign before /meta has it.
  await until(
    async () => ((await (await fetch(publicKeys)).json()) as { public_keys: object[] }).public_keys.length,
    (count) => count === 2,
  );
  const last = await until(
    async () => {
      const before = subscriber.received.length;
      await publish(publisher, app.account, ['x']);
      return (await subscriber.waitFor(before + 1)).at(-1) as Received;
    },
    ({ headers }) => String(headers['webhook-signature']).includes(' '),
  );
  await check(last);
  // The value of the newest key comes first. Alone, it is of an unknown key.
  const [newest] = String(last.headers['webhook-signature']).split(' ') as [string];
  const alone = { ...last, headers: { ...last.headers, 'webhook-signature': newest } };
  for (let count = 0; count < 3; count += 1) await assert.rejects(check(alone), withCode('unknown-key'));
  assert.equal(loads, 1);
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() + 30_000 });
  await Promise.all([check(alone), check(alone), check(alone)]);
  assert.equal(loads, 2);
  // Then forged ones cause no more loads.
  const forged = { ...alone, body: `${last.body} ` };
  for (let count = 0; count < 3; count += 1) await assert.rejects(check(forged), withCode('unknown-key'));
  assert.equal(loads, 2);
});

test('a Fetch Request and a Lambda event are verified', async (t) => {
  const { received, secret } = await deliver('standard');
  const headers = received.headers as Record<string, string>;
  const base64 = Buffer.from(received.body).toString('base64');
  await verify({ ...fromLambda({ headers, body: received.body }), secret });
  await verify({ ...fromLambda({ headers, body: base64, isBase64Encoded: true }), secret });
  await assert.rejects(
    verify({ ...fromLambda({ headers, body: base64 }), secret }),
    withCode('no-matching-secret'),
  );
  await assert.rejects(verify({ ...fromLambda({ headers: null }), secret }), withCode('missing-header'));

  // A server of Fetch requests receives it again over HTTP.
  const listener = createServer(async (incoming, response) => {
    const chunks = await Array.fromAsync(incoming);
    const request = new Request('http://localhost/hooks', {
      method: 'POST',
      headers: incoming.headers as Record<string, string>,
      body: Buffer.concat(chunks),
    });
    const { kind } = await verify({ ...(await fromRequest(request)), secret });
    response.end(kind);
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  t.after(() => listener.close());
  const url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}`;
  const { 'nuncio-event': event, 'nuncio-sequence': sequence, 'nuncio-account': account } = headers;
  const own = Object.fromEntries(Object.entries(headers).filter(([name]) => name.startsWith('webhook-')));
  const sent = { ...own, 'nuncio-event': event, 'nuncio-sequence': sequence, 'nuncio-account': account };
  const response = await fetch(url, {
    method: 'POST',
    headers: sent as Record<string, string>,
    body: received.body,
  });
  assert.equal(await response.text(), 'push');
});
