/** Conversions: what stops a thread costs the account of the event, and others a bounded time. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { ConversionThread } from '../../../src/webhooks/sending/conversion_thread.ts';
import { ConversionError, Converter } from '../../../src/webhooks/sending/converter.ts';

const file = fileURLToPath(new URL('../../support/servers/platforms/versioned.config.ts', import.meta.url));
const entry = new URL('../../../src/conversion_thread.ts', import.meta.url).href;
const [from, to] = ['2026-09-01', '2026-03-01'];

function start(t: TestContext) {
  const converter = new Converter({ thread: entry, file });
  t.after(() => converter.stop());
  const convert = async (accountId: string | null, mode: string) => {
    const event = { kind: 'trial', accountId, body: Buffer.from(JSON.stringify({ mode, new: true })) };
    return (await converter.convert(event, from, to)).toString();
  };
  return { converter, convert };
}

const fine = '{"mode":"fine"}';
const isConversionError = (error: unknown) => error instanceof ConversionError;

test('however many accounts stop a kind’s conversions, those of another account go on', async (t) => {
  const { convert } = start(t);
  assert.equal(await convert('victim', 'fine'), fine);
  for (let account = 0; account < 11; account += 1)
    await assert.rejects(convert(`attacker ${account}`, 'exits'), isConversionError);
  for (const account of ['victim', 'new']) assert.equal(await convert(account, 'fine'), fine);
});

test('conversions of a proven account wait for none of accounts that stop the thread', async (t) => {
  const { convert } = start(t);
  for (const account of ['victim', 'attacker']) assert.equal(await convert(account, 'fine'), fine);
  const stopped: string[] = [];
  const attacks = Array.from({ length: 6 }, (_, index) =>
    convert(index < 3 ? 'attacker' : `attacker ${index}`, 'hangs').catch(() => stopped.push('stopped')),
  );
  for (let count = 0; count < 50; count += 1) assert.equal(await convert('victim', 'fine'), fine);
  // Each of the six takes a second of its line.
  assert.ok(stopped.length < 6, `${stopped.length} of 6 attacks ended first`);
  await Promise.all(attacks);
});

test('each conversion of an account with cheap ones waits for one of eight accounts with dear ones', async (t) => {
  const { convert } = start(t);
  const others = Array.from({ length: 8 }, (_, index) => `other ${index}`);
  for (const account of ['victim', ...others]) assert.equal(await convert(account, 'fine'), fine);
  let ended = 0;
  let isOver = false;
  const dear = others.map(async (account) => {
    while (!isOver) {
      await Promise.all([convert(account, 'dear'), convert(account, 'dear')]);
      ended += 2;
    }
  });
  while (ended < 16) await sleep(5);
  ended = 0;
  for (let count = 0; count < 10; count += 1) assert.equal(await convert('victim', 'fine'), fine);
  isOver = true;
  // With equal turns, there would be 80.
  assert.ok(ended <= 30, `${ended} conversions of the others ended first`);
  await Promise.all(dear);
});

test('an account remains proven when this thread notices the end of its conversions late', async (t) => {
  const { converter, convert } = start(t);
  // The second one starts the thread of the quick line.
  for (let count = 0; count < 2; count += 1) assert.equal(await convert('account', 'fine'), fine);
  const isQuick = () => converter.isQuick({ kind: 'trial', accountId: 'account' }, from, to);
  assert.ok(isQuick());
  const converting = convert('account', 'fine');
  // Longer than makes an account a suspect.
  const begunAt = performance.now();
  while (performance.now() - begunAt < 150);
  assert.equal(await converting, fine);
  assert.ok(isQuick());
});

test('a new account waits for one conversion of all suspects together', async (t) => {
  const { convert } = start(t);
  const ended: string[] = [];
  // All of them wait when the first one of each stops the thread.
  const attacks = ['a', 'b', 'a', 'b', 'a', 'b'].map((account) =>
    convert(account, 'hangs').catch(() => ended.push(account)),
  );
  while (ended.length < 2) await sleep(25);
  assert.equal(await convert('new', 'fine'), fine);
  assert.ok(ended.length <= 3, ended.join());
  await Promise.all(attacks);
});

test('what stops the quick line is tried again, and fails at once after three stops of the account', async (t) => {
  const { convert } = start(t);
  assert.equal(await convert('account', 'fine'), fine);
  // Takes 400 ms: too long for the quick line, and not for the other one.
  assert.equal(await convert('account', 'slow'), '{"mode":"slow"}');
  for (let count = 0; count < 3; count += 1)
    await assert.rejects(convert('account', 'hangs'), /^ConversionError: it took longer than 1000 ms$/);
  await assert.rejects(
    convert('account', 'fine'),
    /^ConversionError: it was too slow or used too much memory 3 times$/,
  );
  assert.equal(await convert('other', 'fine'), fine);
});

test('conversions that wait when the converter stops fail', async (t) => {
  const { converter, convert } = start(t);
  assert.equal(await convert('account', 'fine'), fine);
  const waiting = ['account', 'account', 'other', null].map((account) =>
    assert.rejects(convert(account, 'hangs'), isConversionError),
  );
  await converter.stop();
  await Promise.all(waiting);
  await assert.rejects(convert('account', 'fine'), /the server stops/);
});

test('a thread that cannot start is charged to nobody, and not started again for each conversion', async (t) => {
  const converter = new Converter({ thread: entry, file: '/nowhere/nuncio.config.ts' });
  t.after(() => converter.stop());
  const event = { kind: 'trial', accountId: 'account', body: Buffer.from('{}') };
  for (let count = 0; count < 5; count += 1)
    await assert.rejects(
      converter.convert(event, from, to),
      count === 0 ? isConversionError : /^ConversionError: the thread of the conversions did not start$/,
    );
});

test('suspects take no more of the time than new accounts do together', async (t) => {
  const { convert } = start(t);
  await assert.rejects(convert('suspect', 'hangs'), isConversionError);
  const ended: string[] = [];
  // Each takes 400 ms.
  const slow = Array.from({ length: 5 }, () => convert('suspect', 'slow').then(() => ended.push('slow')));
  const accounts = Array.from({ length: 40 }, (_, index) => `new ${index}`);
  await Promise.all(accounts.map((account) => convert(account, 'fine')));
  assert.ok(ended.length <= 2, `${ended.length} conversions of the suspect ended first`);
  await Promise.all(slow);
});

test('a thread that ended because it was idle starts again', async (t) => {
  const thread = new ConversionThread({ thread: entry, file }, 1_000, 1);
  t.after(() => thread.end('the test ends'));
  const request = { kind: 'trial', from, to, body: '{"mode":"fine","new":true}' };
  for (let count = 0; count < 2; count += 1) {
    const result = await thread.convert(request);
    assert.equal('body' in result && result.body.toString(), fine);
    await sleep(50);
  }
});
