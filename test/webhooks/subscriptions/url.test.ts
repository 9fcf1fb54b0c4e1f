/** Which URLs a subscriber may have, and which addresses Nuncio connects to. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { classifyAddress } from '../../../src/egress/address.ts';
import { checkSubscriberUrl } from '../../../src/webhooks/subscriptions/subscriber_url.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp } from '../../support/webhooks/apps.ts';

const codeOf = (url: string) => checkSubscriberUrl(url, false).error?.code ?? 'accepted';

test('webhooks 1: only https with a host is accepted', () => {
  for (const url of [
    'http://example.com/',
    'ftp://example.com/',
    'ws://example.com/',
    'javascript:alert(1)',
  ]) {
    assert.equal(codeOf(url), 'url_scheme', url);
  }
  assert.equal(codeOf('https://'), 'url_invalid');
  assert.equal(codeOf('https:///'), 'url_invalid');
  assert.equal(codeOf('nothing like a URL'), 'url_scheme');
  assert.equal(codeOf('https://example.com/hook?x=1'), 'accepted');
});

test('a URL with a control character is refused, not silently changed', () => {
  for (const character of ['\r', '\n', '\r\n', '\t', '\0', '\x1f', '\x7f']) {
    for (const url of [
      `https://example.com/a${character}b`,
      `https://exam${character}ple.com/`,
      `${character}https://example.com/`,
      `https://example.com/${character}`,
    ]) {
      assert.equal(codeOf(url), 'url_invalid', JSON.stringify(url));
    }
  }
});

test('webhooks 2: credentials in a URL are refused, and neither stored nor repeated', async () => {
  assert.equal(codeOf('https://u:p@example.com/'), 'url_credentials');
  assert.equal(codeOf('https://u@example.com/'), 'url_credentials');
  const server = await startTestServer({ after }, { NUNCIO_INSECURE_SUBSCRIBERS: '0' });
  const app = await createApp(server);
  const json = { url: 'https://name:hunter2@example.com/', kinds: ['push'] };
  const { status, body, text } = await app.request('POST', '/subscriptions', { json });
  assert.equal(status, 422);
  assert.equal(body.code, 'url_credentials');
  assert.deepEqual(
    body.errors.map((error: { pointer: string; code: string }) => [error.pointer, error.code]),
    [['/url', 'url_credentials']],
  );
  assert.ok(!text.includes('hunter2'));
  const { rows } = await sql`select from subscriptions`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('webhooks 3: ports other than 443 and non-service ports from 1024 are refused', () => {
  for (const port of [0, 22, 25, 80, 1023, 6379, 5432, 9200, 11211, 3306, 27017, 2375]) {
    assert.equal(codeOf(`https://example.com:${port}/`), 'url_port', String(port));
  }
  for (const port of [443, 1024, 8443, 3000, 65_535]) {
    assert.equal(codeOf(`https://example.com:${port}/`), 'accepted', String(port));
  }
  assert.equal(checkSubscriberUrl('https://example.com:443/a', false).url, 'https://example.com/a');
});

test('webhooks 4: a fragment and more than 2,048 bytes are refused', () => {
  assert.equal(codeOf('https://example.com/#a'), 'url_fragment');
  assert.equal(codeOf('https://example.com/#'), 'url_fragment');
  const base = 'https://example.com/';
  assert.equal(codeOf(base + 'a'.repeat(2_048 - base.length)), 'accepted');
  assert.equal(codeOf(base + 'a'.repeat(2_049 - base.length)), 'url_length');
  // Each character has six bytes once it is percent-encoded.
  assert.equal(codeOf(base + 'ä'.repeat(500)), 'url_length');
});

test('webhooks 5: other spellings of an IPv4 address are recognized', () => {
  for (const host of [
    '2130706433',
    '0177.0.0.1',
    '0x7f.1',
    '127.1',
    '①②⑦.0.0.1',
    '0',
    '0x7f000001',
    '127.0.0.1.',
  ]) {
    assert.equal(codeOf(`https://${host}/`), 'url_address', host);
  }
});

test('webhooks 6: IPv6 addresses that carry an IPv4 address are unwrapped', () => {
  const hosts = [
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[64:ff9b::a9fe:a9fe]',
    '[2002:7f00:1::]',
    '[2001:0:53aa:64c:0:5efe:7f00:1]',
    '[2001::1]',
    '[::5efe:7f00:1]',
    '[2a00:1450::5efe:7f00:1]',
    '[2a00:1450::200:5efe:10.0.0.1]',
    '[::ffff:0:7f00:1]',
    '[::ffff:169.254.169.254]',
  ];
  for (const host of hosts) assert.equal(codeOf(`https://${host}/`), 'url_address', host);
  assert.equal(codeOf('https://[64:ff9b::808:808]/'), 'accepted');
  assert.equal(codeOf('https://[::ffff:8.8.8.8]/'), 'accepted');
});

test('webhooks 7: non-public IPv4 ranges are refused', () => {
  const addresses = `0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254
    169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1
    192.168.255.255 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255`;
  for (const address of addresses.split(/\s+/)) {
    assert.equal(codeOf(`https://${address}/`), 'url_address', address);
    assert.notEqual(classifyAddress(address), 'public', address);
  }
  const neighbours = `1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
    169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0
    192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 203.0.112.255 223.255.255.255`;
  for (const address of neighbours.split(/\s+/)) assert.equal(classifyAddress(address), 'public', address);
});

test('webhooks 8: non-public IPv6 ranges are refused', () => {
  const addresses = `:: ::1 ::2 0100::1 100::1 64:ff9b:1::1 2001::1 2001:1ff::1 2001:db8::1 2002::1 3fff::1 5f00::1
    fc00::1 fd00:ec2::254 fe80::1 febf::1 fec0::1 ff02::1 ff0e::1 4000::1 e000::1`;
  for (const address of addresses.split(/\s+/)) {
    assert.equal(codeOf(`https://[${address}]/`), 'url_address', address);
    assert.notEqual(classifyAddress(address), 'public', address);
  }
  assert.equal(classifyAddress('fe80::1%eth0'), 'forbidden');
  assert.equal(classifyAddress('169.254.169.254'), 'forbidden');
  assert.equal(classifyAddress('not an address'), 'forbidden');
  for (const address of ['2606:4700:4700::1111', '2001:4860:4860::8888', '2a00:1450:4001:800::200e']) {
    assert.equal(classifyAddress(address), 'public', address);
  }
});

test('addresses of a cloud’s inside are refused, also those that are formally public and embedded ones', () => {
  const addresses = `168.63.129.16 161.26.0.10 166.8.0.1 166.11.255.254 169.254.169.254 169.254.170.2 100.100.100.200
    192.0.0.192 fd00:ec2::254 fd20:ce::254 ::ffff:168.63.129.16 64:ff9b::168.63.129.16 2606:4700::5efe:168.63.129.16
    ::168.63.129.16 2002:a83f:8110::1 2001:0:a83f:8110::1 2002:7f00:1:: 64:ff9b:1::7f00:1`;
  for (const address of addresses.split(/\s+/)) {
    const host = address.includes(':') ? `[${address}]` : address;
    assert.equal(codeOf(`https://${host}/`), 'url_address', address);
    assert.notEqual(classifyAddress(address), 'public', address);
  }
  for (const address of [
    '168.63.129.15',
    '168.63.129.17',
    '161.25.0.1',
    '161.27.0.1',
    '166.7.0.1',
    '166.12.0.1',
  ]) {
    assert.equal(classifyAddress(address), 'public', address);
  }
});

test('webhooks 9: internal names are refused', () => {
  const hosts = `localhost localhost. LOCALHOST api.localhost api.localhost. printer.local metadata.google.internal
    intranet db single host.lan box.home.arpa`;
  for (const host of hosts.split(/\s+/)) assert.equal(codeOf(`https://${host}/`), 'url_address', host);
  assert.equal(codeOf('https://example.com./'), 'accepted');
});

test('webhooks 10: development allows loopback and http, and nothing else', () => {
  const allowed = (url: string) => checkSubscriberUrl(url, true).error?.code ?? 'accepted';
  for (const url of [
    'http://localhost:4000/',
    'http://127.0.0.1:4000/',
    'https://[::1]:4000/',
    'http://example.com/',
  ]) {
    assert.equal(allowed(url), 'accepted', url);
  }
  for (const url of [
    'http://10.0.0.1:4000/',
    'http://169.254.169.254/',
    'http://[fd00::1]:4000/',
    'http://db:4000/',
  ]) {
    assert.equal(allowed(url), 'url_address', url);
  }
  assert.equal(allowed('ftp://localhost/'), 'url_scheme');
});

test('webhooks 11: an unresolvable name is accepted without a server error', async () => {
  const server = await startTestServer({ after }, { NUNCIO_INSECURE_SUBSCRIBERS: '0' });
  const app = await createApp(server);
  const json = { url: 'https://nobody.has-this-name.invalid/hook', kinds: ['push'] };
  const { status } = await app.request('POST', '/subscriptions', { json });
  assert.equal(status, 201);
});
