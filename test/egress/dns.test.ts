/** The client of name servers: what it reads, what it ignores, and how long it asks. */

import assert from 'node:assert/strict';
import dns from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import fc from 'fast-check';
import { DnsClient } from '../../src/egress/dns/client.ts';
import { readAnswer, writeQuestion } from '../../src/egress/dns/message.ts';
import { createSystemServers, readServer } from '../../src/egress/dns/servers.ts';
import { aliasTo, answerTo, startNameServer } from '../support/network/name_server.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { until } from '../support/webhooks/apps.ts';

const ipv4 = Array.from({ length: 4_000 }, (_, index) => Buffer.from([198, 41, index >> 8, index & 255]));
/** Nothing listens there. */
const closed = { address: '127.0.0.1', port: 1 };
const ipv6 = Buffer.from('26064700000000000000000000001111', 'hex');

test('addresses of both families are found, also behind aliases', async (t) => {
  const { server, asked } = await startNameServer(t, (question) => [
    answerTo(question, question.type === 1 ? ipv4.slice(0, 2) : [ipv6], {
      before: [2, Buffer.concat([aliasTo(['one', 'example']), aliasTo(['two', 'example'])])],
    }),
  ]);
  const client = new DnsClient(() => [server]);
  assert.deepEqual(await client.lookUp('Some.Example', 4), ['198.41.0.0', '198.41.0.1']);
  assert.deepEqual(await client.lookUp('some.example.', 6), ['2606:4700:0:0:0:0:0:1111']);
  assert.deepEqual(
    asked.map(({ name, isTcp }) => [name, isTcp]),
    [
      ['some.example', false],
      ['some.example', false],
    ],
  );
});

test('it finds what Node’s resolver finds', async (t) => {
  const { server } = await startNameServer(t, (question) => {
    const count = Number(question.name.split('.')[0]);
    const addresses = question.type === 1 ? ipv4.slice(0, count) : Array.from({ length: count }, () => ipv6);
    return [
      answerTo(question, question.isTcp || count < 5 ? addresses : [], {
        isTruncated: count >= 5 && !question.isTcp,
      }),
    ];
  });
  const resolver = new Resolver({ timeout: 2_000, tries: 2 });
  resolver.setServers([`${server.address}:${server.port}`]);
  t.after(() => resolver.cancel());
  const client = new DnsClient(() => [server]);
  for (const count of [1, 2, 4, 5, 16, 40]) {
    const name = `${count}.example`;
    assert.deepEqual(await client.lookUp(name, 4), (await resolver.resolve4(name)).slice(0, 16));
    assert.equal((await client.lookUp(name, 6)).length, Math.min(count, 16));
  }
  await assert.rejects(resolver.resolve4('0.example'));
  assert.deepEqual(await client.lookUp('0.example', 4), []);
});

test('attack: a name with thousands of addresses takes little time', async (t) => {
  const { server, asked } = await startNameServer(t, (question) => {
    const addresses = question.name.startsWith('few') ? ipv4.slice(0, 16) : ipv4;
    return [question.isTcp ? answerTo(question, addresses) : answerTo(question, [], { isTruncated: true })];
  });
  const client = new DnsClient(() => [server]);
  assert.equal((await client.lookUp('many.example', 4)).length, 16);
  assert.equal(asked.filter(({ isTcp }) => isTcp).length, 1);
  // To read all of them takes some 300 times as much.
  const ratio = await timesAsMuch(
    () => client.lookUp('many.example', 4),
    () => client.lookUp('few.example', 4),
  );
  assert.ok(ratio < 30, String(ratio));
});

test('of a truncated answer, addresses are used; without any, the server is asked over TCP', async (t) => {
  const { server, asked } = await startNameServer(t, (question) => [
    answerTo(question, question.isTcp ? [] : ipv4.slice(0, 3), { isTruncated: !question.isTcp }),
  ]);
  assert.equal((await new DnsClient(() => [server]).lookUp('some.example', 4)).length, 3);
  assert.deepEqual(
    asked.map(({ isTcp }) => isTcp),
    [false],
  );
});

test('attack: answers with another id, name or type, and what is no answer, are ignored', async (t) => {
  const wrong = [Buffer.from([10, 0, 0, 1])];
  const { server } = await startNameServer(t, (question) => {
    const other = Buffer.from(question.section);
    other.write('x', 1);
    const ofType = Buffer.from(question.section);
    ofType.writeUInt8(28, ofType.length - 3);
    const query = answerTo(question, wrong);
    query.writeUInt8(1, 2);
    return [
      answerTo(question, wrong, { id: question.id ^ 1 }),
      answerTo(question, wrong, { section: other }),
      answerTo(question, wrong, { section: ofType }),
      query,
      Buffer.from([question.id >> 8, question.id & 255]),
      answerTo(question, ipv4.slice(0, 1)),
      answerTo(question, wrong),
    ];
  });
  assert.deepEqual(await new DnsClient(() => [server]).lookUp('some.example', 4), ['198.41.0.0']);
});

test('an answer is read without error, whatever its bytes are', () => {
  const question = writeQuestion('some.example', 4);
  const head = Buffer.from([0, 0, 0x81, 0x80, 0, 1, 0xff, 0xff, 0, 0, 0, 0]);
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 600 }), fc.boolean(), (bytes, isAnswer) => {
      const message = isAnswer ? Buffer.concat([head, question.section, bytes]) : Buffer.from(bytes);
      const addresses = readAnswer(message, question)?.addresses ?? [];
      assert.ok(addresses.length <= 16);
    }),
  );
  const message = answerTo(
    { id: 0, name: '', type: 1, section: question.section, isTcp: false },
    ipv4.slice(0, 4),
  );
  for (let end = 0; end <= message.length; end += 1) {
    const answer = readAnswer(message.subarray(0, end), question);
    assert.equal(answer?.addresses.length ?? 0, Math.max(0, Math.floor((end - 30) / 16)), String(end));
  }
});

test('a name server that does not listen, hangs or fails is replaced by the next', async (t) => {
  const { server: good } = await startNameServer(t, (question) => [answerTo(question, ipv4.slice(0, 1))]);
  const { server: hang } = await startNameServer(t, () => []);
  const { server: fail } = await startNameServer(t, (question) => [answerTo(question, [], { code: 2 })]);
  // It does not understand the question, and does not repeat it.
  const { server: bare } = await startNameServer(t, (question) => [
    Buffer.from([question.id >> 8, question.id & 255, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
  ]);
  for (const servers of [
    [closed, good],
    [bare, good],
    [fail, good, hang],
    [hang, fail, good],
    [hang, hang, fail, good],
  ])
    assert.deepEqual(await new DnsClient(() => servers).lookUp('some.example', 4), ['198.41.0.0']);
  for (const servers of [[], [closed], [fail, bare, closed], [hang]])
    await assert.rejects(new DnsClient(() => servers).lookUp('some.example', 4), /name server/);
});

test('questions that are sent together learn that a name server does not listen', async (t) => {
  const other = await startNameServer(t, (question) => [answerTo(question, ipv4.slice(0, 1))]);
  for (let count = 0; count < 5; count += 1) {
    const client = new DnsClient(() => [closed, other.server]);
    const startedAt = performance.now();
    await Promise.all([client.lookUp('some.example', 4), client.lookUp('some.example', 4)]);
    // The second would wait for one and a half seconds.
    if (performance.now() - startedAt < 1_400) return;
  }
  assert.fail('each waited');
});

test('a server that refuses a question is asked once more', async (t) => {
  const { server, asked } = await startNameServer(t, (question) =>
    asked.length === 1 ? [answerTo(question, [], { code: 5 })] : [answerTo(question, ipv4.slice(0, 1))],
  );
  assert.deepEqual(await new DnsClient(() => [server]).lookUp('some.example', 4), ['198.41.0.0']);
  assert.equal(asked.length, 2);
});

test('a server that only refers to others is replaced by the next', async (t) => {
  const { server } = await startNameServer(t, (question) => [answerTo(question, [], { isReferral: true })]);
  const other = await startNameServer(t, (question) => [answerTo(question, ipv4.slice(0, 1))]);
  const client = new DnsClient(() => [server, other.server]);
  assert.deepEqual(await client.lookUp('some.example', 4), ['198.41.0.0']);
});

test('a server that is listed twice and fails ends the question', async () => {
  await assert.rejects(new DnsClient(() => [closed, closed]).lookUp('some.example', 4), /name server/);
});

test('a server that is silent while another one answers is asked last', async (t) => {
  const hanging = await startNameServer(t, () => []);
  const other = await startNameServer(t, (question) =>
    question.name.startsWith('hang') ? [] : [answerTo(question, ipv4.slice(0, 1))],
  );
  const client = new DnsClient(() => [hanging.server, other.server]);
  // Nobody answers this one, so it says nothing of the servers.
  await assert.rejects(client.lookUp('hang.example', 4));
  const before = hanging.asked.length;
  await client.lookUp('one.example', 4);
  const names = () => hanging.asked.slice(before).map(({ name }) => name);
  await until(
    async () => names(),
    (asked) => asked.length === 2,
  );
  assert.deepEqual(names(), ['one.example', '']);
  await until(
    async () => {
      const earlier = hanging.asked.length;
      await client.lookUp('two.example', 4);
      return hanging.asked.length - earlier;
    },
    (count) => count === 0,
  );
});

test('attack: a name whose servers hang changes nothing about which name server is asked first', async (t) => {
  const inside = await startNameServer(t, (question) =>
    question.name.startsWith('hang') ? [] : [answerTo(question, ipv4.slice(0, 1))],
  );
  const outside = await startNameServer(t, (question) =>
    question.name.startsWith('hang')
      ? [answerTo(question, ipv4.slice(0, 1))]
      : [answerTo(question, [], { code: 3 })],
  );
  const client = new DnsClient(() => [inside.server, outside.server]);
  for (let count = 0; count < 2; count += 1) {
    await client.lookUp('hang.example', 4);
    assert.deepEqual(await client.lookUp('inside.example', 4), ['198.41.0.0']);
    // Until the server would count as silent.
    await setTimeout(1_600);
    assert.deepEqual(await client.lookUp('inside.example', 4), ['198.41.0.0']);
  }
});

test('attack: names whose long answers never come leave connections to other tenants', async (t) => {
  let hangingCount = 0;
  const before: number[] = [];
  const { server } = await startNameServer(t, (question) => {
    if (!question.isTcp) return [answerTo(question, [], { isTruncated: true })];
    if (question.name.startsWith('other')) {
      before.push(hangingCount);
      return [answerTo(question, ipv4.slice(0, 1))];
    }
    hangingCount += 1;
    return [];
  });
  const client = new DnsClient(() => [server]);
  const hanging = Promise.allSettled(
    Array.from({ length: 100 }, (_, index) => client.lookUp(`long${index}.example`, 4, 'one')),
  );
  const others = Array.from({ length: 3 }, (_, index) =>
    client.lookUp(`other${index}.example`, 4, `other ${index}`),
  );
  for (const found of await Promise.all(others)) assert.deepEqual(found, ['198.41.0.0']);
  for (const { status } of await hanging) assert.equal(status, 'rejected');
  // All twenty are never one tenant's.
  for (const count of before) assert.ok(count < 20, String(count));
  assert.equal(before.length, 3);
});

test('a place for an answer over TCP is free as soon as the answer has failed', async (t) => {
  const { server, asked } = await startNameServer(t, (question) => {
    if (!question.isTcp) return [answerTo(question, [], { isTruncated: true })];
    return [answerTo(question, [], { code: 2 })];
  });
  const silent = await startNameServer(t, () => []);
  const client = new DnsClient(() => [server, silent.server]);
  await Promise.allSettled(
    Array.from({ length: 40 }, (_, index) => client.lookUp(`long${index}.example`, 4, `tenant ${index}`)),
  );
  assert.equal(asked.filter(({ isTcp }) => isTcp).length, 40);
});

test('a long answer whose beginning has no address is no answer', async (t) => {
  const { server } = await startNameServer(t, (question) =>
    question.isTcp
      ? [answerTo(question, [], { before: [1, Buffer.concat([aliasTo(['a']), Buffer.alloc(5_000)])] })]
      : [answerTo(question, [], { isTruncated: true })],
  );
  const other = await startNameServer(t, (question) => [answerTo(question, ipv4.slice(0, 1))]);
  const client = new DnsClient(() => [server, other.server]);
  assert.deepEqual(await client.lookUp('some.example', 4), ['198.41.0.0']);
});

test('a name that does not exist has no addresses, and nobody else is asked', async (t) => {
  const { server } = await startNameServer(t, (question) => [answerTo(question, [], { code: 3 })]);
  const other = await startNameServer(t, (question) => [answerTo(question, ipv4.slice(0, 1))]);
  const client = new DnsClient(() => [server, other.server]);
  assert.deepEqual(await client.lookUp('none.example', 4), []);
  assert.equal(other.asked.length, 0);
});

test('a name that takes seconds is found while those of all others are answered at once', async (t) => {
  const { server } = await startNameServer(t, async (question) => {
    if (question.name.startsWith('late')) await setTimeout(2_000);
    return [answerTo(question, ipv4.slice(0, 1))];
  });
  const client = new DnsClient(() => [server]);
  for (let count = 0; count < 20; count += 1) await client.lookUp(`name${count}.example`, 4);
  assert.deepEqual(await client.lookUp('late.example', 4), ['198.41.0.0']);
});

test('attack: names that hang share ports, and keep no other waiting', async (t) => {
  const { server, asked } = await startNameServer(t, (question) =>
    question.name.startsWith('hang') ? [] : [answerTo(question, ipv4.slice(0, 1))],
  );
  const sockets = () => process.getActiveResourcesInfo().filter((name) => name === 'UDPWRAP').length;
  const before = sockets();
  const client = new DnsClient(() => [server]);
  const hanging = Array.from({ length: 150 }, (_, index) => client.lookUp(`hang${index}.example`, 4));
  const ended = Promise.allSettled(hanging);
  assert.deepEqual(await client.lookUp('some.example', 4), ['198.41.0.0']);
  assert.ok(sockets() - before <= 2, String(sockets() - before));
  for (const { status } of await ended) assert.equal(status, 'rejected');
  assert.equal(sockets(), before);
  assert.ok(asked.length > 150);
});

test('names that cannot be names are refused', async () => {
  const client = new DnsClient(() => [closed]);
  for (const name of [
    '',
    '.',
    'a..b',
    `${'a'.repeat(64)}.example`,
    `${'a.'.repeat(126)}bc`,
    `${'a.'.repeat(127)}b`,
    'ü.example',
    'a b',
  ])
    await assert.rejects(client.lookUp(name, 4), /not valid/, name);
});

test('the system’s name servers are those of the file, or those that Node found', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-dns-'));
  t.after(() => rm(folder, { recursive: true }));
  const path = join(folder, 'resolv.conf');
  const ofNode = dns.getServers().map(readServer);
  assert.deepEqual(createSystemServers(path)(), ofNode);
  const text =
    '# nameserver 192.0.2.9\nnameserver 192.0.2.1\nsearch example\nnameserver\tfe80::1%eth0 # one\nnameserver x\n';
  await writeFile(path, text);
  assert.deepEqual(createSystemServers(path)(), [
    { address: '192.0.2.1', port: 53 },
    { address: 'fe80::1%eth0', port: 53 },
  ]);
  await writeFile(path, 'search example\n');
  assert.deepEqual(createSystemServers(path)(), ofNode);
});

test('name servers are read as Node writes them', () => {
  assert.deepEqual(readServer('192.0.2.1'), { address: '192.0.2.1', port: 53 });
  assert.deepEqual(readServer('192.0.2.1:5353'), { address: '192.0.2.1', port: 5_353 });
  assert.deepEqual(readServer('2001:db8::1'), { address: '2001:db8::1', port: 53 });
  assert.deepEqual(readServer('[2001:db8::1]:5353'), { address: '2001:db8::1', port: 5_353 });
});
