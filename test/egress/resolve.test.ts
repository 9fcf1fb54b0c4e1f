/** Names with thousands of addresses, of which few are checked and used, and names that take long. */

import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { Resolver } from 'node:dns/promises';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { resolverOptions, resolveVetted } from '../../src/egress/resolve.ts';
import { timesAsMuch } from '../support/processor_time.ts';

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

/** Its answer to a question is one address. */
function answerTo(question: Buffer): Buffer {
  const flags = Buffer.from([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
  const address = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 198, 41, 0, 1]);
  // Without what the question has after its name, type and class.
  const end = question.indexOf(0, 12) + 5;
  return Buffer.concat([question.subarray(0, 2), flags, question.subarray(12, end), address]);
}

test('a name that takes a second is found while those of all others are answered at once', async (t) => {
  const nameServer = createSocket('udp4');
  nameServer.on('message', async (question, { port, address }) => {
    if (question.includes('late')) await setTimeout(1_000);
    nameServer.send(answerTo(question), port, address);
  });
  nameServer.bind(0, '127.0.0.1');
  await once(nameServer, 'listening');
  const resolver = new Resolver(resolverOptions);
  t.after(() => {
    resolver.cancel();
    nameServer.close();
  });
  resolver.setServers([`127.0.0.1:${nameServer.address().port}`]);
  for (let count = 0; count < 20; count += 1) await resolver.resolve4(`name${count}.example`);
  assert.deepEqual(await resolver.resolve4('late.example'), ['198.41.0.1']);
});
