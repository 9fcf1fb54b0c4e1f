/** Private receivers: `webhooks.allow` opens exactly the listed hosts and networks, and nothing beside them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import shipped from '../../../nuncio.config.ts';
import { AllowList, allowListErrors } from '../../../src/egress/allow_list.ts';
import { resolveVetted } from '../../../src/egress/resolve.ts';
import { createPlatform } from '../../../src/platform.ts';
import { checkSubscriberUrl } from '../../../src/webhooks/subscriptions/subscriber_url.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const allow = [
  '10.20.0.0/16',
  '192.168.7.9',
  'fd12:3456::/32',
  'hooks.internal.example',
  '*.svc.cluster.local',
  'worker',
];

/** What a connection to this host may use, if its name resolves to these addresses. */
function connect(host: string, addresses: string[], options: { isPlain?: boolean; list?: string[] } = {}) {
  const policy = {
    allowLoopback: false,
    allow: options.list ?? allow,
    resolveHost: async () => addresses,
  };
  return resolveVetted(host, policy, options.isPlain).then(
    () => 'allowed',
    ({ code }) => code,
  );
}

test('a listed host may be in any private network, a listed network is open to any host', async () => {
  for (const [host, address] of [
    ['hooks.internal.example', '10.9.9.9'],
    ['HOOKS.internal.example', '172.16.0.1'],
    ['hooks.internal.example', '8.8.8.8'],
    ['api.shop.svc.cluster.local', '10.96.0.12'],
    ['worker', '100.64.1.1'],
    ['other.example', '10.20.255.1'],
    ['10.20.0.1', '10.20.0.1'],
    ['192.168.7.9', '192.168.7.9'],
    ['::ffff:10.20.0.1', '::ffff:10.20.0.1'],
    ['fd12:3456::1', 'fd12:3456::1'],
  ] as const) {
    assert.equal(await connect(host, [address]), 'allowed', `${host} ${address}`);
  }
});

test('a host beside the list is refused when its name resolves to a private address', async () => {
  for (const [host, ...addresses] of [
    ['other.example', '10.21.0.1'],
    ['other.example', '10.20.0.1', '10.21.0.1'],
    ['other.example', '8.8.8.8', '192.168.7.8'],
    ['svc.cluster.local', '10.96.0.12'],
    ['evilsvc.cluster.local', '10.96.0.12'],
    ['hooks.internal.example.evil.example', '10.9.9.9'],
    ['xhooks.internal.example', '10.9.9.9'],
    ['192.168.7.8'],
    ['::ffff:10.21.0.1'],
    ['64:ff9b::a14:1'],
    ['fd12:3457::1'],
  ] as [string, ...string[]][]) {
    assert.equal(await connect(host, addresses), 'address_refused', `${host} ${addresses}`);
  }
});

test('link-local and metadata addresses are refused, even for a listed host and inside a listed network', async () => {
  const list = [...allow, 'fd00::/8', '100.64.0.0/10'];
  for (const address of [
    '169.254.169.254',
    '169.254.0.1',
    'fe80::1',
    '::ffff:169.254.169.254',
    '168.63.129.16',
    '100.100.100.200',
    'fd00:ec2::254',
    'fd20:ce::254',
    'fd00:c1::a9fe:a9fe',
    '0.0.0.0',
    '::',
    '224.0.0.1',
    '255.255.255.255',
  ]) {
    assert.equal(await connect('hooks.internal.example', [address], { list }), 'address_refused', address);
    assert.equal(await connect(address, [], { list }), 'address_refused', address);
  }
});

test('loopback is open only where it is listed itself', async () => {
  for (const address of ['127.0.0.1', '::1', '::ffff:127.0.0.1']) {
    assert.equal(await connect('hooks.internal.example', [address]), 'address_refused', address);
    assert.equal(await connect('localhost', [address], { list: ['localhost'] }), 'allowed', address);
    assert.equal(
      await connect('hooks.example', [address], { list: ['127.0.0.0/8', '::1'] }),
      'allowed',
      address,
    );
  }
  assert.equal(await connect('hooks.example', ['127.0.0.1'], { list: ['localhost'] }), 'address_refused');
});

test('a connection without TLS reaches only listed hosts, also after the list became shorter', async () => {
  const plain = { isPlain: true };
  assert.equal(await connect('hooks.internal.example', ['8.8.8.8'], plain), 'allowed');
  assert.equal(await connect('10.20.0.1', [], plain), 'allowed');
  assert.equal(await connect('other.example', ['10.20.0.1'], plain), 'address_refused');
  assert.equal(await connect('8.8.8.8', [], plain), 'address_refused');
  assert.equal(
    await connect('hooks.internal.example', ['10.9.9.9'], { ...plain, list: [] }),
    'address_refused',
  );
});

test('a URL is accepted at registration as the list says', () => {
  const codeOf = (url: string, list = allow) =>
    checkSubscriberUrl(url, false, list).error?.code ?? 'accepted';
  for (const url of [
    'https://hooks.internal.example/a',
    'http://hooks.internal.example/a',
    'http://Hooks.Internal.Example.:8080/a',
    'http://api.shop.svc.cluster.local/a',
    'http://worker:3000/',
    'http://10.20.0.1:8080/',
    'http://[fd12:3456::1]:8080/',
    // A name that may turn out to be in the listed network.
    'https://hooks.corp/',
  ]) {
    assert.equal(codeOf(url), 'accepted', url);
  }
  assert.equal(codeOf('http://hooks.corp/'), 'url_scheme');
  assert.equal(codeOf('http://10.21.0.1/'), 'url_scheme');
  assert.equal(codeOf('https://10.21.0.1/'), 'url_address');
  assert.equal(codeOf('https://0x0a150001/'), 'url_address');
  assert.equal(codeOf('https://localhost/'), 'url_address');
  assert.equal(codeOf('https://169.254.169.254/'), 'url_address');
  assert.equal(codeOf('http://hooks.internal.example:6379/'), 'url_port');
  assert.equal(codeOf('http://user:x@worker/'), 'url_credentials');
  assert.equal(codeOf('https://hooks.corp/', ['worker']), 'url_address');
});

test('a mistake in the list stops the start with its place and the reason', () => {
  for (const [entry, reason] of [
    ['0.0.0.0/0', /not inside/],
    ['8.8.8.0/24', /not inside/],
    ['10.0.0.0/7', /not inside/],
    ['::/0', /not inside/],
    ['169.254.0.0/16', /never reached/],
    ['169.254.169.254', /never reached/],
    ['fe80::/10', /never reached/],
    ['100.100.100.200', /never reached/],
    ['10.20.0.0/33', /leave out/],
    ['10.20.0.0/', /leave out/],
    ['10.20.0/16', /leave out/],
    ['http://worker', /leave out/],
    ['worker:3000', /leave out/],
    ['*', /must be a host/],
    ['*.*.example', /must be a host/],
    ['a.*.example', /must be a host/],
    ['bücher.example', /Punycode/],
    ['', /must be a host/],
    [7, /must be a host/],
  ] as const) {
    const errors = allowListErrors([entry]);
    assert.match(errors[0]?.reason ?? 'no error', reason, String(entry));
    assert.throws(() => createPlatform({ webhooks: { allow: [entry as string] } }), /webhooks\.allow\[0\]/);
  }
  assert.deepEqual(allowListErrors(allow), []);
  assert.equal(allowListErrors('worker')[0]?.index, null);
  assert.equal(new AllowList(['10.0.0.0/8']).hasAddress('10.0.0.1%eth0'), false);
});

test('a deployment without insecure subscribers delivers to a listed receiver, and to none beside it', async (t) => {
  const platform = createPlatform({ ...shipped, webhooks: { allow: ['127.0.0.1', 'private.example'] } });
  const resolveHost = async (name: string) => [name === 'rebinding.example' ? '127.0.0.2' : '10.255.255.1'];
  const server = await startTestServer(t, { NUNCIO_INSECURE_SUBSCRIBERS: '0' }, 'dev', platform, {
    resolveHost,
  });
  const publisher = await createPublisher(server);
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const refused = await app.request('POST', '/subscriptions', {
    json: { url: `http://rebinding.example:${subscriber.port}/`, kinds: ['*'] },
  });
  assert.equal(refused.body.errors[0].code, 'url_scheme');
  const { id } = await subscribe(app, { url: `https://rebinding.example:${subscriber.port}/` });
  await publish(publisher, app.account, ['listed']);
  await subscriber.waitFor(1);
  const [delivery] = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (items) => items[0]?.attempt_count === 1,
  );
  assert.equal(delivery.last_error, 'address_refused');
  assert.equal(subscriber.received.length, 1);
});
