/** Names with thousands of addresses, of which few are checked and used. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { DnsClient } from '../../src/egress/dns/client.ts';
import { resolveVetted, resolveWith } from '../../src/egress/resolve.ts';
import { NoTurnError } from '../../src/shared/limited_work.ts';
import { answerTo, startNameServer } from '../support/network/name_server.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { until } from '../support/webhooks/apps.ts';

const ipv4 = Array.from({ length: 4_000 }, (_, index) => `198.41.${index >> 8}.${index & 255}`);
const ipv6 = Array.from({ length: 2_000 }, (_, index) => `2606:4700::${index.toString(16)}`);

const resolve = (addresses: readonly string[], allow: readonly string[] = []) =>
  resolveVetted('many.example', { allowLoopback: false, allow, resolveHost: async () => [...addresses] });

test('of a name with thousands of addresses, sixteen of each family are used', async () => {
  const addresses = await resolve([...ipv4, ...ipv6]);
  assert.deepEqual(addresses.slice(0, 16), ipv4.slice(0, 16));
  assert.equal(addresses.length, 32);
  assert.match(addresses[31] ?? '', /^2606:4700:.*:f$/);
  assert.equal((await resolve(ipv4.slice(0, 3))).length, 3);
});

test('a forbidden one among those that are used forbids the name', async () => {
  await assert.rejects(resolve(['10.0.0.1', ...ipv4]), { code: 'address_refused' });
  await assert.rejects(resolve([...ipv4, '::1', ...ipv6]), { code: 'address_refused' });
  assert.ok(!(await resolve([...ipv4, '10.0.0.1'])).includes('10.0.0.1'));
});

test('a name with thousands of addresses takes little time', async () => {
  const allow = ['10.0.0.0/8', 'hooks.internal'];
  const few = [...ipv4.slice(0, 16), ...ipv6.slice(0, 16)];
  // To check all of them takes some 200 times as much.
  const ratio = await timesAsMuch(
    () => resolve([...ipv4, ...ipv6], allow),
    () => resolve(few, allow),
  );
  assert.ok(ratio < 50, String(ratio));
});

test('name servers are asked for both families', async (t) => {
  const { server } = await startNameServer(t, (question) => [
    answerTo(question, [
      question.type === 1
        ? Buffer.from([198, 41, 0, 1])
        : Buffer.from('2606470000000000'.padEnd(32, '1'), 'hex'),
    ]),
  ]);
  const resolveHost = resolveWith(new DnsClient(() => [server]));
  assert.deepEqual(await resolveVetted('some.example', { allowLoopback: false, resolveHost }), [
    '198.41.0.1',
    '2606:4700:0:0:1111:1111:1111:1111',
  ]);
  assert.deepEqual(await resolveHost('localhost.', { tenant: null }), ['127.0.0.1', '::1']);
  assert.deepEqual(await resolveHost('some.localhost', { tenant: null }), ['127.0.0.1', '::1']);
});

for (const [family, type] of [
  ['IPv4', 1],
  ['IPv6', 28],
] as const)
  test(`a name whose servers never answer the question for ${family} has its other addresses`, async (t) => {
    const address = type === 1 ? '2606:4700:0:0:0:0:0:1' : '198.41.0.1';
    const bytes =
      type === 1 ? Buffer.from(`26064700${'0'.repeat(23)}1`, 'hex') : Buffer.from([198, 41, 0, 1]);
    const { server } = await startNameServer(t, (question) =>
      question.type === type ? [] : [answerTo(question, [bytes])],
    );
    const resolveHost = resolveWith(new DnsClient(() => [server]));
    for (let count = 0; count < 2; count += 1)
      assert.deepEqual(await resolveVetted('some.example', { allowLoopback: false, resolveHost }), [address]);
  });

test('a name without addresses of one family waits for those of the other', async (t) => {
  const { server } = await startNameServer(t, async (question) => {
    if (question.type === 28) return [answerTo(question, [])];
    await setTimeout(1_000);
    return [answerTo(question, [Buffer.from([198, 41, 0, 1])])];
  });
  const resolveHost = resolveWith(new DnsClient(() => [server]));
  assert.deepEqual(await resolveHost('some.example', { tenant: 'one' }), ['198.41.0.1']);
});

test('who asks for the same name at the same time gets the same answer', async (t) => {
  const { server, asked } = await startNameServer(t, (question) =>
    question.name === 'none.example'
      ? [answerTo(question, [], { code: 2 })]
      : [answerTo(question, question.type === 1 ? [Buffer.from([198, 41, 0, 1])] : [])],
  );
  const resolveHost = resolveWith(new DnsClient(() => [server]));
  const names = ['some.example', 'some.example', 'some.example.', 'other.example'];
  const found = await Promise.all(
    names.map((name, index) => resolveHost(name, { tenant: `tenant ${index}` })),
  );
  assert.deepEqual(found, [['198.41.0.1'], ['198.41.0.1'], ['198.41.0.1'], ['198.41.0.1']]);
  assert.equal(asked.length, 4);
  // Also a little later.
  await resolveHost('some.example', { tenant: 'one' });
  await resolveHost('other.example', { tenant: null });
  assert.equal(asked.length, 4);
  for (const { status } of await Promise.allSettled([
    resolveHost('none.example', { tenant: 'one' }),
    resolveHost('none.example', { tenant: 'one' }),
  ]))
    assert.equal(status, 'rejected');
});

test('attack: names that hang take few questions, and leave turns to other tenants', async (t) => {
  let hanging = 0;
  const before: number[] = [];
  const { server } = await startNameServer(t, (question) => {
    if (question.name.startsWith('hang')) {
      hanging += 1;
      return [];
    }
    before.push(hanging);
    return [answerTo(question, question.type === 1 ? [Buffer.from([198, 41, 0, 1])] : [])];
  });
  const resolveHost = resolveWith(new DnsClient(() => [server]));
  const waits: number[] = [];
  const onTurn = (ms: number) => waits.push(ms);
  const attack = Promise.allSettled(
    Array.from({ length: 200 }, (_, index) => resolveHost(`hang${index}.example`, { tenant: 'one', onTurn })),
  );
  const others = [1, 2, 3].map((index) =>
    resolveHost(`other${index}.example`, { tenant: `other ${index}`, onTurn: (ms) => assert.ok(ms < 1_500) }),
  );
  assert.deepEqual(await Promise.all(others), [['198.41.0.1'], ['198.41.0.1'], ['198.41.0.1']]);
  // Seven sixteenths of 24 names, each of two questions.
  for (const count of before) assert.ok(count <= 22, String(count));
  // Nobody's turns are those of the server itself.
  assert.deepEqual(await resolveHost('own.example', { tenant: null }), ['198.41.0.1']);
  const results = await attack;
  const reasons = results.map((result) => (result.status === 'rejected' ? result.reason : null));
  assert.ok(reasons.every((reason) => reason instanceof Error));
  assert.ok(waits.length < 100);
  assert.equal(reasons.filter((reason) => reason instanceof NoTurnError).length, 200 - waits.length);
  assert.ok(hanging <= 4 * waits.length);
});

test('attack: a name that is silent for one family keeps its place while the name server works', async (t) => {
  const silent = new Set<string>();
  const { server } = await startNameServer(t, (question) => {
    if (question.type === 1) return [answerTo(question, [Buffer.from([198, 41, 0, 1])])];
    silent.add(question.name);
    return [];
  });
  const resolveHost = resolveWith(new DnsClient(() => [server]));
  const found = Array.from({ length: 60 }, (_, index) =>
    resolveHost(`half${index}.example`, { tenant: 'one' }),
  );
  const results = await Promise.allSettled(found);
  const count = results.filter(({ status }) => status === 'fulfilled').length;
  // What began at first, of which each place is taken for ten seconds.
  assert.equal(count, silent.size);
  assert.ok(count <= 11, String(count));
  // Their addresses are known for longer than five seconds.
  const before = silent.size;
  assert.deepEqual(await resolveHost('half0.example', { tenant: 'one' }), ['198.41.0.1']);
  assert.equal(silent.size, before);
});

for (const [how, answerMs] of [
  ['hang', null],
  ['are slow', 4_500],
] as const)
  test(`attack: tenants whose names ${how}, however many, leave turns to others, also for names that they want`, async (t) => {
    const { server } = await startNameServer(t, async (question) => {
      if (question.name.startsWith('bad')) {
        if (answerMs === null) return [];
        await setTimeout(answerMs);
      }
      return [answerTo(question, question.type === 1 ? [Buffer.from([198, 41, 0, 1])] : [])];
    });
    const resolveHost = resolveWith(new DnsClient(() => [server]));
    const other = (name: string) => resolveHost(name, { tenant: 'other' });
    const attack = (round: number) =>
      Array.from({ length: 60 }, (_, index) =>
        resolveHost(`bad${round}x${index}.example`, { tenant: `tenant ${index % 30}` }).catch(() => {}),
      );
    await Promise.all(attack(0));
    // Until their places are free. From now on, most of them are known.
    await setTimeout(6_000);
    const again = Promise.all(attack(1));
    for (let count = 0; count < 3; count += 1) {
      const wanted = resolveHost(`some${count}.example`, { tenant: `tenant ${count}` }).catch(() => {});
      assert.deepEqual(await other(`some${count}.example`), ['198.41.0.1']);
      await wanted;
    }
    await again;
  });

test('addresses of a family that come later are known, too', async (t) => {
  const { server, asked } = await startNameServer(t, async (question) => {
    if (question.type === 28) return [answerTo(question, [Buffer.from(`26064700${'0'.repeat(23)}1`, 'hex')])];
    await setTimeout(1_000);
    return [answerTo(question, [Buffer.from([198, 41, 0, 1])])];
  });
  const resolveHost = resolveWith(new DnsClient(() => [server]));
  const user = { tenant: 'one' };
  assert.deepEqual(await resolveHost('some.example', user), ['2606:4700:0:0:0:0:0:1']);
  await until(
    () => resolveHost('some.example', user),
    (addresses) => addresses.length === 2,
  );
  assert.equal(asked.length, 2);
});
