/** The check of certificates before OpenSSL verifies them: real handshakes of every kind, and hosts that send what they should not. */

import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import {
  type AddressInfo,
  connect as connectTcp,
  createServer as createTcp,
  type Server,
  type Socket,
} from 'node:net';
import { type TestContext, test } from 'node:test';
import { createServer as createTls, type TLSSocket, type TlsOptions } from 'node:tls';
import fc from 'fast-check';
import { CertificateCheck } from '../../src/egress/certificate_check.ts';
import { type ConnectorOptions, connectGuarded } from '../../src/egress/connector.ts';
import { der, makeChain, relativeName, type ServedChain } from '../support/network/certificate_chain.ts';
import { serverCertificate, serverKey } from '../support/network/certificates.ts';
import { siteEgress } from '../support/network/site.ts';
import { timesAsMuch } from '../support/processor_time.ts';

const options: ConnectorOptions = { ...siteEgress, allowLoopback: true };
const trusted: ServedChain = { cert: serverCertificate, key: serverKey };

async function listen(t: TestContext, server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => sockets.add(socket.on('error', () => {})));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

/** A server that repeats what it receives. */
function serve(t: TestContext, tls: TlsOptions): Promise<number> {
  const server = createTls(tls, (socket) => socket.on('error', () => {}).pipe(socket));
  return listen(
    t,
    server.on('tlsClientError', () => {}),
  );
}

/** Something between a client and a server that changes what the server sends. */
async function alter(
  t: TestContext,
  port: number,
  createChange: () => (chunk: Buffer) => Buffer[],
): Promise<number> {
  const between = createTcp({ noDelay: true }, (client) => {
    const change = createChange();
    const server = connectTcp({ port, host: '127.0.0.1', noDelay: true });
    client.on('data', (chunk) => server.write(chunk)).on('close', () => server.destroy());
    server
      .on('error', () => {})
      .on('data', (chunk: Buffer) => {
        for (const each of change(chunk)) client.write(each);
      })
      .on('close', () => client.destroy());
  });
  return listen(t, between);
}

async function open(port: number): Promise<TLSSocket> {
  const { socket } = await connectGuarded(new URL(`https://one.apps.example:${port}`), options, {
    tenant: null,
  });
  return socket as TLSSocket;
}

async function assertRefused(port: number, reason: RegExp): Promise<void> {
  await assert.rejects(open(port), (error: { code?: string; reason?: string }) => {
    assert.equal(error.code, 'tls_error');
    assert.match(error.reason ?? '', reason);
    return true;
  });
}

async function assertEchoes(socket: TLSSocket, bytes = 100_000): Promise<void> {
  const sent = Buffer.alloc(bytes, 'text');
  let received = Buffer.alloc(0);
  const { promise, resolve } = Promise.withResolvers<void>();
  socket.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk]);
    if (received.length >= bytes) resolve();
  });
  socket.write(sent);
  await promise;
  assert.ok(received.equals(sent));
  socket.destroy();
}

const versions: readonly TlsOptions[] = [
  { minVersion: 'TLSv1.3', ciphers: 'TLS_AES_128_GCM_SHA256' },
  { minVersion: 'TLSv1.3', ciphers: 'TLS_AES_256_GCM_SHA384' },
  { minVersion: 'TLSv1.3', ciphers: 'TLS_CHACHA20_POLY1305_SHA256' },
  // The client has to send another key: its first message is answered by a HelloRetryRequest.
  { minVersion: 'TLSv1.3', ecdhCurve: 'P-384' },
  { maxVersion: 'TLSv1.2', ciphers: 'ECDHE-ECDSA-AES128-GCM-SHA256' },
  { maxVersion: 'TLSv1.2', ciphers: 'ECDHE-ECDSA-CHACHA20-POLY1305' },
];

for (const version of versions) {
  const name = Object.values(version).join(' ');
  const is12 = version.maxVersion === 'TLSv1.2';

  test(`a trusted certificate passes: ${name}`, async (t) => {
    const port = await serve(t, { ...trusted, ...version });
    const socket = await open(port);
    assert.equal(socket.getProtocol(), is12 ? 'TLSv1.2' : 'TLSv1.3');
    if (version.ciphers !== undefined) assert.equal(socket.getCipher().name, version.ciphers);
    await assertEchoes(socket);
    const bytewise = await alter(t, port, () => (chunk) => [...chunk].map((byte) => Buffer.from([byte])));
    await assertEchoes(await open(bytewise), 1_000);
  });

  test(`ten certificates reach OpenSSL, eleven do not: ${name}`, async (t) => {
    const ten = await serve(t, { ...makeChain({ authorities: 9 }), ...version });
    await assertRefused(ten, /^self-signed certificate in certificate chain/);
    const eleven = await serve(t, { ...makeChain({ authorities: 10 }), ...version });
    await assertRefused(eleven, /^the host sent more than 10 certificates$/);
    const large = await serve(t, { ...makeChain({ authorities: 250 }), ...version });
    await assertRefused(large, /^the host sent more than 64 KiB before its certificates$/);
  });

  test(`keys that are slow to use do not reach OpenSSL: ${name}`, async (t) => {
    for (const authority of [
      generateKeyPairSync('ec', { namedCurve: 'sect571r1' }),
      generateKeyPairSync('ec', { namedCurve: 'secp256k1' }),
      generateKeyPairSync('rsa', { modulusLength: 2_048, publicExponent: 2 ** 31 + 11 }),
    ]) {
      const port = await serve(t, { ...makeChain({ authorities: 1, authority }), ...version });
      await assertRefused(port, /^the host sent a certificate with a key that is not supported$/);
    }
  });

  test(`few name constraints reach OpenSSL, many do not: ${name}`, async (t) => {
    const names = (count: number) => Array.from({ length: count }, (_, index) => `n${index}.example`);
    const few = await serve(t, { ...makeChain({ authorities: 2, constraints: names(40) }), ...version });
    await assertRefused(few, /^permitted subtree violation/);
    const many = await serve(t, { ...makeChain({ authorities: 2, constraints: names(100) }), ...version });
    await assertRefused(many, /^the host sent certificates with too many name constraints$/);
  });

  test(`no certificate hides in another, nor an extension in its encoding: ${name}`, async (t) => {
    const served = (chain: ServedChain) => serve(t, { ...chain, ...version });
    // Node reads the text as the certificate, OpenSSL what is around it.
    const text = extension('2a0304', Buffer.from(`\n${serverCertificate}\n`));
    const slow = generateKeyPairSync('ec', { namedCurve: 'sect571r1' });
    const inText = await served(makeChain({ authorities: 1, authority: slow, extensions: [text] }));
    await assertRefused(inText, /^the host sent a certificate with a key that is not supported$/);
    const subtrees = Array.from({ length: 300 }, () => der(0x30, der(0x82, Buffer.from('x'))));
    const value = der(0x04, der(0x30, der(0xa1, ...subtrees)));
    // The lengths of the identifier, and of the flag behind it, have a byte more than they need.
    const long = der(0x30, Buffer.from('068103551d1e', 'hex'), value);
    const flagged = der(0x30, Buffer.from('0603551d1e018101ff', 'hex'), value);
    for (const hidden of [long, flagged]) {
      const port = await served(makeChain({ authorities: 1, extensions: [hidden] }));
      await assertRefused(port, /^the host sent a certificate that cannot be read$/);
    }
  });

  test(`revocation lists with names that are slow to read do not reach OpenSSL: ${name}`, async (t) => {
    const full = der(0x30, der(0xa0, der(0xa0, der(0x86, Buffer.from('http://crl.example/')))));
    const relative = der(0x30, der(0xa0, der(0xa1, relativeName('x').subarray(2))));
    const chain = (...points: Buffer[]) =>
      makeChain({ authorities: 2, extensions: [extension('551d1f', der(0x30, ...points))] });
    const usual = await serve(t, { ...chain(full, full), ...version });
    await assertRefused(usual, /^self-signed certificate in certificate chain/);
    const slow = await serve(t, { ...chain(full, relative), ...version });
    await assertRefused(slow, /^the host sent a certificate with revocation lists that are not supported$/);
  });

  test(`a harmless certificate in the clear hides no other: ${name}`, async (t) => {
    const port = await serve(t, { ...makeChain({ authorities: 20 }), ...version });
    const harmless = certificateMessage(serverCertificate);
    const before = await alter(t, port, () => onFirst((chunk) => [record(harmless), chunk]));
    await assertRefused(before, /^the host sent an unexpected message$/);
    // Behind the first message of the server, in a record of its own and in the same one.
    for (const isSameRecord of [false, true]) {
      const insert = (chunk: Buffer) => {
        const end = 5 + chunk.readUInt16BE(3);
        const [hello, rest] = [chunk.subarray(5, end), chunk.subarray(end)];
        if (isSameRecord) return [record(Buffer.concat([hello, harmless])), rest];
        return [record(hello), record(harmless), rest];
      };
      const behind = await alter(t, port, () => onFirst(insert));
      // In TLS 1.2 the added message comes where one is expected, and OpenSSL refuses the second.
      await assertRefused(behind, is12 ? /./ : /^the host sent an unexpected message$/);
    }
  });

  test(`bytes that are changed, lost or added end the handshake: ${name}`, async (t) => {
    const port = await serve(t, { ...trusted, ...version });
    const edits = fc.record({
      at: fc.nat(1_500),
      kind: fc.constantFrom<'flip' | 'drop' | 'add'>('flip', 'drop', 'add'),
      value: fc.integer({ min: 1, max: 255 }),
    });
    await fc.assert(
      fc.asyncProperty(edits, async (edit) => {
        const altered = await alter(t, port, () => {
          let passed = 0;
          return (chunk) => {
            const at = edit.at - passed;
            passed += chunk.length;
            return at < 0 || at >= chunk.length ? [chunk] : [edited(chunk, at, edit)];
          };
        });
        const opened = open(altered);
        const code = opened.then(
          (socket) => void socket.destroy(),
          (error: { code: string }) => error.code,
        );
        // A handshake may wait for what was lost. How it ends later, when the test closes its connections, does not matter.
        const waited = new Promise<undefined>((resolve) => setTimeout(resolve, 50, undefined));
        assert.equal((await Promise.race([code, waited])) ?? 'tls_error', 'tls_error');
      }),
      { numRuns: 40, seed: 1 },
    );
  });
}

function onFirst(change: (chunk: Buffer) => Buffer[]): (chunk: Buffer) => Buffer[] {
  let isFirst = true;
  return (chunk) => {
    const changed = isFirst ? change(chunk) : [chunk];
    isFirst = false;
    return changed;
  };
}

function edited(chunk: Buffer, at: number, { kind, value }: { kind: string; value: number }): Buffer {
  const byte = chunk[at] as number;
  const middle = { flip: [byte ^ value], drop: [], add: [byte, value] }[kind] as number[];
  return Buffer.concat([chunk.subarray(0, at), Buffer.from(middle), chunk.subarray(at + 1)]);
}

/** RFC 5280 section 4.1. */
function extension(identifier: string, value: Buffer): Buffer {
  return der(0x30, der(0x06, Buffer.from(identifier, 'hex')), der(0x04, value));
}

/** A record of the handshake in the clear. */
function record(content: Buffer): Buffer {
  const head = Buffer.from([22, 3, 3, 0, 0]);
  head.writeUInt16BE(content.length, 3);
  return Buffer.concat([head, content]);
}

/** RFC 5246 section 7.4.2. */
function certificateMessage(pem: string): Buffer {
  const bytes = Buffer.from(pem.replaceAll(/-----.*-----|\s/g, ''), 'base64');
  const sized = (content: Buffer) => {
    const size = Buffer.alloc(3);
    size.writeUIntBE(content.length, 0, 3);
    return Buffer.concat([size, content]);
  };
  return Buffer.concat([Buffer.from([11]), sized(sized(sized(bytes)))]);
}

test('hosts that the operator named have no limits', async (t) => {
  const port = await serve(t, makeChain({ authorities: 20 }));
  const url = new URL(`https://one.apps.example:${port}`);
  await assert.rejects(connectGuarded(url, { ...options, isNamedByOperator: true }, { tenant: null }), {
    code: 'tls_error',
    reason: 'self-signed certificate in certificate chain',
  });
  const { socket } = await connectGuarded(
    new URL(`https://one.apps.example:${await serve(t, trusted)}`),
    {
      ...options,
      isNamedByOperator: true,
    },
    { tenant: null },
  );
  await assertEchoes(socket as TLSSocket);
});

test('an encrypted record at the start is refused', async (t) => {
  const early = createTcp((socket) =>
    socket.write(Buffer.concat([Buffer.from([23, 3, 3, 0, 20]), Buffer.alloc(20)])),
  );
  await assertRefused(await listen(t, early), /^the host sent an unexpected message$/);
});

test('attack: a large record that arrives byte by byte takes little time', async () => {
  /** Records that are passed on unread, of 16,000 bytes together. */
  const read = (records: number) => {
    const bytes = 16_000 / records;
    const check = new CertificateCheck('server');
    for (let at = 0; at < 16_000; at += 1) {
      const place = at % bytes;
      const head = Buffer.from([21, 3, 3, (bytes - 5) >> 8, (bytes - 5) & 255]);
      check.take(Buffer.from([head[place] ?? 0]));
      const record = check.next();
      assert.equal(record?.length, place === bytes - 1 ? bytes : undefined);
    }
    assert.equal(check.rest.length, 0);
  };
  // To copy what has arrived for each byte takes some ten times as much.
  const ratio = await timesAsMuch(
    () => read(1),
    () => read(160),
  );
  assert.ok(ratio < 3, String(ratio));
});

test('attack: a message in hundreds of records takes little time', () => {
  /** A message `ServerHello` that never ends, of 60,000 bytes. */
  const read = async (records: number) => {
    const check = new CertificateCheck('server');
    const bytes = 60_000 / records;
    for (let count = 0; count < records; count += 1) {
      const content = Buffer.alloc(bytes);
      if (count === 0) content.set([2, 0, 0xff, 0xff]);
      check.take(record(content));
      assert.notEqual(check.next(), null);
    }
  };
  // To copy what has been read for each record takes some ten times as much.
  return timesAsMuch(
    () => Promise.all(Array.from({ length: 20 }, () => read(250))),
    () => Promise.all(Array.from({ length: 20 }, () => read(4))),
  ).then((ratio) => assert.ok(ratio < 10, String(ratio)));
});

test('a record that is larger than any is refused at once', () => {
  const check = new CertificateCheck('server');
  check.take(Buffer.from([22, 3, 3, 0x48, 1]));
  assert.throws(() => check.next(), { code: 'tls_error' });
});

test('a message that is cut into hundreds of records is refused', async (t) => {
  const pieces = createTcp((socket) => {
    const start = record(Buffer.from([2, 0, 0xff, 0xff]));
    socket.write(Buffer.concat([start, ...Array.from({ length: 300 }, () => record(Buffer.alloc(1)))]));
  });
  await assertRefused(await listen(t, pieces), /^the host sent more than 256 records/);
});

test('a server cannot repeat the handshake on the same connection', async (t) => {
  const { promise, resolve } = Promise.withResolvers<Error | null>();
  const server = createTls({ ...trusted, maxVersion: 'TLSv1.2' }, (socket) => {
    socket.on('error', (error) => resolve(error)).on('close', () => resolve(new Error('closed')));
    socket.renegotiate({}, resolve);
  });
  const socket = await open(await listen(t, server));
  assert.notEqual(await promise, { tenant: null });
  socket.destroy();
});
