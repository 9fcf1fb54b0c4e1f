/** Errors of verify: options, bodies that are no bytes, the likeliest reason for a wrong signature, and hostile headers. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { VerificationError, type VerifyOptions, verify } from '../../src/verify/verify.ts';
import {
  makeSecret,
  signSha256,
  signStandard,
  signTimestamp,
  standardKey,
  textKey,
} from '../../src/webhooks/subscriptions/signature.ts';

const secret = makeSecret();
const now = () => Math.floor(Date.now() / 1_000);
const id = '5b0c7a41-9e2d-8f3a-8c41-000000000007';

/** A delivery that is signed as the server signs. */
function signed(body: string, timestamp = now()) {
  const headers: Record<string, string> = {
    'Nuncio-Event': 'push',
    'Nuncio-Sequence': '7',
    'Nuncio-Delivery': id,
    'Nuncio-Signature': signTimestamp([textKey(secret)], timestamp, Buffer.from(body)),
  };
  return { headers, body, secret };
}

async function failure(options: unknown): Promise<VerificationError> {
  const error = await verify(options as VerifyOptions).then(
    () => assert.fail('it is verified'),
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof VerificationError, String(error));
  return error;
}

test('tolerance limits the age in both directions, and 0 does not turn the limit off', async () => {
  const at = async (seconds: number, tolerance?: number) => {
    const options = { ...signed('{}', now() + seconds), tolerance };
    return verify(options).then(
      () => 'verified',
      (error: VerificationError) => error.code,
    );
  };
  assert.deepEqual(
    [await at(-240), await at(240), await at(-302), await at(330), await at(-10, 60), await at(-70, 60)],
    ['verified', 'verified', 'too-old', 'too-new', 'verified', 'too-old'],
  );
  assert.deepEqual([await at(-5, 0), await at(60, 0)], ['too-old', 'too-new']);
  for (const tolerance of [Number.NaN, -1, Number.POSITIVE_INFINITY, '300', null])
    await assert.rejects(verify({ ...signed('{}'), tolerance: tolerance as number }), TypeError);
});

test('an unknown preset of header names is a TypeError', async () => {
  for (const headerNames of ['__proto__', 'constructor', 'gitlab'] as never[])
    await assert.rejects(verify({ ...signed('{}'), headerNames }), TypeError);
});

test('a body that is no text and no bytes says that a parser has read it', async () => {
  for (const body of [{}, [], { type: 'Buffer', data: [1] }, 7, true]) {
    const { code, status, message } = await failure({ ...signed('{}'), body });
    assert.deepEqual([code, status], ['body-parsed', 500]);
    for (const words of ['express.raw', 'fastifyVerifier', 'c.req.arrayBuffer'])
      assert.ok(message.includes(words));
  }
  for (const body of [undefined, null])
    assert.equal((await failure({ ...signed('{}'), body })).code, 'no-body');
});

test('an error says that the JSON was serialized again when the secret matches the other form', async () => {
  const value = { list: [1, 2, { a: 'x, y: z', b: [] }], text: 'line\nbreak', number: 1.5 };
  const compact = JSON.stringify(value);
  const spaced = '{"list": [1, 2, {"a": "x, y: z", "b": []}], "text": "line\\nbreak", "number": 1.5}';
  const indented = JSON.stringify(value, null, 2);
  for (const [sent, changed] of [
    [compact, indented],
    [compact, spaced],
    [spaced, compact],
    [spaced, indented],
    [compact, `${compact}\n`],
    [indented, `${indented}\n`],
  ] as const) {
    for (const headers of [
      signed(sent).headers,
      { ...signed(sent).headers, 'Nuncio-Signature': signSha256([textKey(secret)], Buffer.from(sent)) },
      {
        ...signed(sent).headers,
        'Webhook-Id': id,
        'Webhook-Timestamp': String(now()),
        'Webhook-Signature': signStandard([standardKey(secret)], id, now(), Buffer.from(sent)),
      },
    ]) {
      const { code, message } = await failure({ headers, body: changed, secret });
      assert.equal(code, 'no-matching-secret');
      assert.match(message, /other white space/);
    }
  }
  assert.match((await failure({ ...signed(compact), body: compact.replace('1.5', '2') })).message, /another/);
  assert.match((await failure({ ...signed(compact), body: '' })).message, /empty/);
});

test('secrets that are none have a code of their own, which does not name them', async () => {
  const standard = {
    'Webhook-Id': id,
    'Webhook-Timestamp': String(now()),
    'Webhook-Signature': 'v1,AAAA',
  };
  for (const bad of ['', ' ', ` ${secret}`, `${secret}\n`, 7, null, {}]) {
    const { code, status } = await failure({ ...signed('{}'), secret: bad });
    assert.deepEqual([code, status], ['malformed-secret', 500], JSON.stringify(bad));
  }
  for (const bad of ['whsec_', 'whsec_*secret*', 'whsec_é'])
    assert.equal((await failure({ headers: standard, body: '{}', secret: bad })).code, 'malformed-secret');
  // One malformed secret among good ones is reported, too.
  assert.equal((await failure({ ...signed('{}'), secrets: [''] })).code, 'malformed-secret');
  for (const none of [{ secret: undefined }, { secret: undefined, secrets: [] }])
    assert.equal((await failure({ ...signed('{}'), ...none })).code, 'no-secret');
});

test('headers that are missing, long, repeated or no object have a code', async () => {
  const { headers, body } = signed('{}');
  const change = (changed: Record<string, unknown>) => ({
    body,
    secret,
    headers: { ...headers, ...changed },
  });
  for (const none of [undefined, null, 'text', {}, [], new Headers(), { headers: {} }])
    assert.equal((await failure({ headers: none, body, secret })).code, 'missing-header');
  for (const name of Object.keys(headers)) {
    const { code, message } = await failure(change({ [name]: undefined }));
    assert.equal(code, 'missing-header');
    assert.ok(message.includes(name));
    assert.equal((await failure(change({ [name]: 'x'.repeat(1_000_000) }))).code, 'malformed-header');
    assert.equal(
      (await failure(change({ [name]: [headers[name], headers[name]] }))).code,
      'malformed-header',
    );
    assert.equal((await failure(change({ [name.toLowerCase()]: headers[name] }))).code, 'malformed-header');
  }
  const value = headers['Nuncio-Signature'] as string;
  const many = `${value}${`,v1=${'0'.repeat(64)}`.repeat(5_000)}`;
  assert.equal((await failure(change({ 'Nuncio-Signature': many }))).code, 'malformed-header');
  const names = Array.from({ length: 50_000 }, (_each, index) => [`x-${index}`, 'y']);
  assert.equal((await verify(change(Object.fromEntries(names)) as VerifyOptions)).id, id);
});

test('a body of deep or long JSON takes no more than its size', async () => {
  const deep = `${'['.repeat(5_000)}${'1,'.repeat(140_000)}1${']'.repeat(5_000)}`;
  const text = `"${'\\"'.repeat(140_000)}"`;
  const spaces = ' '.repeat(290_000);
  for (const body of [deep, '['.repeat(290_000), text, spaces, `${spaces}x`, `"${'a'.repeat(290_000)}`]) {
    const { code } = await failure({ ...signed('{}'), body });
    assert.equal(code, 'no-matching-secret');
  }
  const { headers } = signed('{}');
  const signature = ' '.repeat(4_096);
  assert.equal(
    (await failure({ headers: { ...headers, 'Nuncio-Signature': signature }, body: '', secret })).code,
    'malformed-header',
  );
});

test('any headers and body are refused with an error of verify', async () => {
  const text = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.constantFrom('t=1,v1=00', 'sha256=00', 'v1,AAAA', 'v1a,AAAA', String(now()), '__proto__', '7', id),
  );
  const names = [
    'webhook-id',
    'webhook-timestamp',
    'webhook-signature',
    'nuncio-signature',
    'nuncio-delivery',
  ];
  const name = fc.oneof(text, fc.constantFrom(...names, '__proto__', 'constructor', 'headers'));
  const headers = fc.dictionary(name, fc.oneof(text, fc.array(text)));
  const options = fc.record({ headers, body: text });
  await fc.assert(
    fc.asyncProperty(options, async (given) => {
      await failure({ ...given, secret, publicKeys: [`whpk_${Buffer.alloc(32).toString('base64')}`] });
    }),
    { numRuns: 300 },
  );
});
