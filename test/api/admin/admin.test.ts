/** `/admin`: who has access, what they see and change, and the entries in the audit log. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId } from '../../../src/clients/own_clients.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { requester } from '../../support/clients/api_client.ts';
import {
  clientToken,
  createTestAccount,
  createTestClient,
  mintAccessToken,
} from '../../support/clients/oauth.ts';
import { consoleScopes, createConsoleUser } from '../../support/console/console_user.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, subscribe, until } from '../../support/webhooks/apps.ts';

const server = await startTestServer(
  { after },
  { NUNCIO_EGRESS_PROXY: 'http://user:hidden-word@127.0.0.1:9' },
);
const { db } = server;
const admin = await createConsoleUser(server, { isAdmin: true });

const reads = ['accounts', 'apps', 'grants', 'subscriptions', 'audit', 'keys', 'nodes', 'stats', 'settings'];

async function all(path: string): Promise<Record<string, unknown>[]> {
  const items = [];
  for (let next: string | undefined = path; next !== undefined; ) {
    const { status, body, text } = await admin.request('GET', next);
    assert.equal(status, 200, text);
    items.push(...body.items);
    next = body._links.next?.href;
  }
  return items;
}

test('only current administrators get in, with a token of an admin account or client', async () => {
  const developer = await createConsoleUser(server);
  const liar = await createConsoleUser(server, { scopes: [...consoleScopes, 'admin'] });
  const machine = await createTestClient(server, { scopes: ['admin'] });
  const asMachine = requester(server, await clientToken(server, machine, ['admin']));
  const gone = await createConsoleUser(server, { isAdmin: true });
  await sql`update accounts set is_admin = false where id = ${gone.account.id}`.execute(db);
  // A token of an app that registered itself, even though it has the scope.
  const client = await createTestClient(server, { origin: 'registration', scopes: ['admin'] });
  const { accessToken } = await mintAccessToken(server, {
    account: admin.account,
    client,
    scopes: ['admin'],
  });
  const stranger = requester(server, accessToken);
  for (const name of reads) {
    const path = `/admin/${name}`;
    assert.equal((await admin.request('GET', path)).status, 200, path);
    assert.equal((await asMachine('GET', path)).status, 200, path);
    assert.equal((await developer.request('GET', path)).status, 403, path);
    for (const request of [liar.request, gone.request, stranger]) {
      const { status, body } = await request('GET', path);
      assert.deepEqual([status, body.code], [403, 'not-an-admin'], path);
    }
  }
  const target = await createTestAccount(server);
  const app = await createApp(server);
  const subscription = await subscribe(app, { url: 'https://example.com/' });
  for (const [method, path] of [
    ['POST', `/admin/accounts/${target.id}/disable`],
    ['POST', `/admin/accounts/${target.id}/enable`],
    ['POST', `/admin/apps/${app.clientId}/verify`],
    ['POST', `/admin/apps/${app.clientId}/suspend`],
    ['DELETE', `/admin/grants/${app.grantId}`],
    ['POST', `/admin/subscriptions/${subscription.id}/disable`],
  ] as const) {
    for (const request of [developer.request, liar.request, gone.request, stranger]) {
      assert.equal((await request(method, path)).status, 403, path);
    }
  }
  assert.equal((await app.request('GET', `/subscriptions/${subscription.id}`)).body.state, 'active');
});

test('accounts are found by the start of their address, disabled and enabled', async () => {
  const name = newId();
  const accounts = [];
  for (const part of ['c', 'a', 'b', '%', 'é']) {
    accounts.push(await createTestAccount(server, { email: `${name}-${part}@example.com` }));
  }
  const path = `/admin/accounts?limit=2&email=${name.toUpperCase()}-`;
  const found = await all(path);
  assert.deepEqual(
    found.map(({ email }) => String(email).slice(name.length + 1, name.length + 2)),
    ['%', 'a', 'b', 'c', 'é'],
  );
  assert.deepEqual(await all(`/admin/accounts?email=${name}-%25x`), []);
  const user = await createConsoleUser(server, { account: accounts[0] as (typeof accounts)[0] });
  const self = `/admin/accounts/${user.account.id}`;
  const disabled = await admin.request('POST', `${self}/disable`);
  assert.deepEqual([disabled.status, disabled.body.state], [200, 'disabled']);
  await until(
    async () => (await user.request('GET', '/apps')).status,
    (status) => status === 401,
  );
  assert.equal((await all(`${path}&state=disabled`)).length, 1);
  assert.equal((await all(`${path}&state=active`)).length, 4);
  assert.equal((await admin.request('POST', `${self}/disable`)).status, 200, 'again is the same');
  assert.equal((await admin.request('POST', `${self}/enable`)).body.state, 'active');
  const own = await admin.request('POST', `/admin/accounts/${admin.account.id}/disable`);
  assert.deepEqual([own.status, own.body.code], [409, 'own-account']);
  const audit = await all(`/admin/audit?account=${user.account.id}&kind=account.`);
  assert.deepEqual(
    audit.map(({ kind, actor }) => [kind, actor]),
    [
      ['account.enabled', admin.account.id],
      ['account.disabled', admin.account.id],
      ['account.created', null],
    ],
  );
});

test('apps are listed by time and name, verified, suspended and reinstated with a reason', async () => {
  const name = newId();
  const owner = await createConsoleUser(server);
  const ids: string[] = [];
  for (const part of ['B', 'a', 'C']) {
    const json = { client_name: `${name} ${part}`, redirect_uris: ['https://reader.example/'] };
    ids.push((await owner.request('POST', '/apps', { json })).body.client_id);
  }
  const newest = (await all('/admin/apps?limit=2&origin=account')).map(({ client_id }) => client_id);
  assert.deepEqual(newest.slice(0, 3), ids.toReversed());
  const byName = await all(`/admin/apps?limit=1&name=${name}`);
  assert.deepEqual(
    byName.map((app) => String(app.client_name).at(-1)),
    ['a', 'B', 'C'],
  );
  const everything = await all('/admin/apps?limit=200');
  // The command line is an app on the user's machine: the operator can suspend it. The server's pages are no apps.
  const own = everything.map(({ client_id }) => String(client_id)).filter((id) => id.startsWith('nuncio-'));
  assert.deepEqual(own, ['nuncio-cli']);
  assert.equal((await admin.request('GET', '/admin/apps/nuncio-console')).status, 404);
  assert.equal((await admin.request('POST', '/admin/apps/nuncio-console/suspend')).status, 404);

  const path = `/admin/apps/${ids[0]}`;
  const act = async (what: string) => {
    const seen = what === 'verify' && { updated_at: (await admin.request('GET', path)).body.updated_at };
    const { status, body, text } = await admin.request('POST', `${path}/${what}`, {
      json: { reason: `why ${what}`, ...seen },
    });
    assert.equal(status, 200, text);
    return body.state;
  };
  assert.equal(await act('verify'), 'verified');
  assert.equal(await act('suspend'), 'suspended');
  assert.equal((await all(`/admin/apps?state=suspended&name=${name}`)).length, 1);
  assert.equal(await act('reinstate'), 'verified');
  assert.equal(await act('unverify'), 'unverified');
  assert.equal(await act('unverify'), 'unverified');
  const audit = (await all(`/admin/audit?client=${ids[0]}&kind=app.`)).toReversed();
  assert.deepEqual(
    audit.map(({ kind, actor, details }) => [kind, actor, details]),
    ['verified', 'suspended', 'reinstated', 'unverified'].map((what, index) => [
      `app.${what}`,
      admin.account.id,
      { reason: `why ${['verify', 'suspend', 'reinstate', 'unverify'][index]}` },
    ]),
  );
  const long = { json: { reason: 'x'.repeat(501) } };
  assert.equal((await admin.request('POST', `${path}/verify`, long)).status, 422);
  const operators = await createTestClient(server);
  assert.equal((await admin.request('POST', `/admin/apps/${operators.id}/unverify`)).status, 409);
});

test('an administrator cannot verify an app that changed since they read it', async () => {
  const owner = await createConsoleUser(server);
  const json = { client_name: 'Honest', redirect_uris: ['https://honest.example/'] };
  const { client_id: id } = (await owner.request('POST', '/apps', { json })).body;
  const read = async () => (await admin.request('GET', `/admin/apps/${id}`)).body;
  const seen = await read();
  const patch = { redirect_uris: ['https://evil.example/'] };
  assert.equal((await owner.request('PATCH', `/apps/${id}`, { json: patch })).status, 200);
  const verify = (updatedAt: unknown) =>
    admin.request('POST', `/admin/apps/${id}/verify`, { json: { updated_at: updatedAt } });
  const refused = await verify(seen.updated_at);
  assert.deepEqual([refused.status, refused.body.code], [412, 'app-changed']);
  assert.equal((await read()).state, 'unverified');
  assert.equal((await verify('yesterday')).status, 422);
  assert.equal((await verify((await read()).updated_at)).body.state, 'verified');
  const suspend = { json: { updated_at: seen.updated_at } };
  assert.equal((await admin.request('POST', `/admin/apps/${id}/suspend`, suspend)).status, 422);
});

test('grants of the server’s own apps are marked, and listed only on request', async () => {
  const app = await createApp(server);
  const { grantId } = await mintAccessToken(server, {
    account: app.account,
    client: { id: consoleClientId },
    scopes: ['read:profile'],
  });
  const ids = async (query: string) =>
    (await all(`/admin/grants?account=${app.account.id}${query}`)).map(({ id, first_party: own }) => [
      id,
      own,
    ]);
  assert.deepEqual(await ids(''), [[app.grantId, false]]);
  assert.deepEqual(await ids('&first_party=false'), [[app.grantId, false]]);
  assert.deepEqual(await ids('&first_party=true'), [[grantId, true]]);
  assert.deepEqual(await ids(`&client=${consoleClientId}`), [[grantId, true]]);
  assert.deepEqual(await ids(`&client=${consoleClientId}&first_party=false`), []);
  assert.equal((await admin.request('GET', '/admin/grants?first_party=yes')).status, 400);
  assert.equal((await admin.request('GET', `/admin/grants/${grantId}`)).body.first_party, true);
});

test('grants are listed by account and client, and withdrawn', async () => {
  const app = await createApp(server);
  const other = await createApp(server, { account: app.account });
  const byAccount = await all(`/admin/grants?limit=1&account=${app.account.id}`);
  assert.deepEqual(byAccount.map(({ id }) => id).sort(), [app.grantId, other.grantId].sort());
  const both = await all(`/admin/grants?account=${app.account.id}&client=${app.clientId}`);
  assert.deepEqual(
    both.map(({ id }) => id),
    [app.grantId],
  );
  const path = `/admin/grants/${app.grantId}`;
  assert.equal((await admin.request('GET', path)).body.client, app.clientId);
  assert.equal((await admin.request('DELETE', path)).status, 204);
  assert.equal((await admin.request('DELETE', path)).status, 404);
  assert.equal((await admin.request('GET', path)).status, 404);
  await until(
    async () => (await app.request('GET', '/articles')).status,
    (status) => status === 401,
  );
  const [entry] = await all(`/admin/audit?client=${app.clientId}&kind=grant.withdrawn`);
  assert.deepEqual([entry?.actor, entry?.details], [admin.account.id, { reason: 'operator' }]);
});

test('subscriptions are listed without their secrets, and disabled', async () => {
  const app = await createApp(server);
  const made = await subscribe(app, {
    url: 'https://example.com/',
    headers: { 'X-Key': 'a secret of theirs' },
  });
  for (const query of [`account=${app.account.id}`, `client=${app.clientId}`, 'state=active']) {
    const found = await all(`/admin/subscriptions?${query}`);
    assert.ok(
      found.some(({ id }) => id === made.id),
      query,
    );
    assert.ok(!JSON.stringify(found).includes('a secret of theirs'));
  }
  const path = `/admin/subscriptions/${made.id}`;
  const { body } = await admin.request('GET', path);
  assert.deepEqual([body.account, body.client, body.secret], [app.account.id, app.clientId, undefined]);
  const disabled = await admin.request('POST', `${path}/disable`);
  assert.deepEqual([disabled.body.state, disabled.body.disabled_reason], ['disabled', 'operator']);
  assert.equal((await app.request('GET', `/subscriptions/${made.id}`)).body.disabled_reason, 'operator');
  assert.equal((await admin.request('GET', `/subscriptions/${made.id}`)).status, 404);

  const failing = await subscribe(app, { url: 'https://example.com/failing' });
  await sql`
    with lane as (
      update lane_progress set failing_since = now() - interval '4 days'
      where lane = (select lane from subscriptions where id = ${failing.id}) returning lane, failing_since)
    insert into failing_warnings (lane, failing_since, warning, disables_at)
    select lane, failing_since, 'last', now() + interval '1 day' from lane`.execute(db);
  const [next] = await all('/admin/subscriptions?failing=true&limit=1');
  assert.deepEqual([next?.id, typeof next?.disables_at], [failing.id, 'string']);
});

test('subscriptions and audit entries name their accounts and apps, and null stands for deleted ones', async () => {
  const app = await createApp(server, {
    account: await createTestAccount(server, { email: 'ann@names.example' }),
  });
  await sql`update clients set name = 'Reader of names' where id = ${app.clientId}`.execute(db);
  const { id } = await subscribe(app, { url: 'https://example.com/named' });
  const expected = { account_name: 'ann@names.example', client_name: 'Reader of names' };
  const named = ({ account_name, client_name }: Record<string, unknown>) => ({ account_name, client_name });
  const [listed] = await all(`/admin/subscriptions?client=${app.clientId}`);
  assert.deepEqual(named(listed ?? {}), expected);
  const path = `/admin/subscriptions/${id}`;
  assert.deepEqual(named((await admin.request('GET', path)).body), expected);
  assert.deepEqual(named((await admin.request('POST', `${path}/disable`)).body), expected);
  // An account that publishing created has neither an address nor a name.
  await sql`update accounts set email = null, external_id = 'user-17', name = '' where id = ${app.account.id}`.execute(
    db,
  );
  const machine = await createTestClient(server, { scopes: ['admin'] });
  await sql`update clients set name = 'Nightly script' where id = ${machine.id}`.execute(db);
  const asMachine = requester(server, await clientToken(server, machine, ['admin']));
  assert.equal((await asMachine('DELETE', `/admin/grants/${app.grantId}`)).status, 204);
  const [withdrawn] = await all(`/admin/audit?client=${app.clientId}&kind=grant.withdrawn`);
  assert.deepEqual(named(withdrawn ?? {}), { account_name: 'user-17', client_name: 'Reader of names' });
  assert.deepEqual([withdrawn?.actor, withdrawn?.actor_name], [`client:${machine.id}`, 'Nightly script']);
  await sql`delete from accounts where id = ${app.account.id}`.execute(db);
  await sql`delete from clients where id = ${app.clientId}`.execute(db);
  const [kept] = await all(`/admin/audit?client=${app.clientId}&kind=grant.withdrawn`);
  assert.deepEqual(named(kept ?? {}), { account_name: null, client_name: null });
});

test('the audit log is read by kind, client, account and time, newest first', async () => {
  const client = newId();
  const account = newId();
  await sql`
    insert into audit_entries (at, kind, account_id, client_id)
    select '2990-01-01Z'::timestamptz + n * interval '1 hour',
      case when n % 3 = 0 then 'token.issued' else 'grant.created' end, ${account}, ${client}
    from generate_series(1, 30) as n`.execute(db);
  assert.equal((await all(`/admin/audit?limit=3&client=${client}`)).length, 20, 'single tokens are left out');
  assert.equal((await all(`/admin/audit?limit=3&account=${account}&kind=token`)).length, 10);
  assert.equal((await all(`/admin/audit?account=${account}&client=${client}&kind=grant.created`)).length, 20);
  assert.deepEqual(await all(`/admin/audit?account=${account}&client=other`), []);
  const since = '2990-01-01T05:00:00Z';
  const until = '2990-01-01T08:00:00Z';
  const found = await all(`/admin/audit?client=${client}&since=${since}&until=${until}`);
  assert.deepEqual(
    found.map(({ at }) => at),
    ['2990-01-01T07:00:00.000Z', '2990-01-01T05:00:00.000Z'],
  );
  for (const query of ['since=x', 'account=x', 'kind=', 'limit=0', 'after=x', 'x=1']) {
    assert.equal((await admin.request('GET', `/admin/audit?${query}`)).status, 400, query);
  }
});

test('no page of the audit log reads more than a limit, however rare the filter', async () => {
  await sql`
    insert into audit_entries (kind, client_id)
    select 'token.issued', 'busy' from generate_series(1, 2500)`.execute(db);
  const { body } = await admin.request('GET', '/admin/audit?kind=no.such.kind');
  assert.deepEqual([body.items, typeof body._links.next.href], [[], 'string']);
  assert.deepEqual(await all('/admin/audit?kind=no.such.kind'), []);
});

test('keys, nodes, sizes and settings are shown without secrets', async () => {
  const keys = await admin.request('GET', '/admin/keys');
  assert.ok(keys.body.signing_keys.some(({ state }: { state: string }) => state === 'current'));
  const nodes = await admin.request('GET', '/admin/nodes');
  assert.equal(nodes.body.items[0].state, 'alive');
  const stats = await admin.request('GET', '/admin/stats');
  assert.equal(stats.body.accounts.is_estimate, false);
  assert.ok(stats.body.accounts.count > 0);
  const settings = await admin.request('GET', '/admin/settings');
  const byName = new Map(
    settings.body.settings.map((each: { name: string; value: unknown }) => [each.name, each.value]),
  );
  assert.deepEqual(
    [byName.get('NUNCIO_BASE_URL'), byName.get('NUNCIO_EGRESS_PROXY'), byName.get('apps.creation')],
    [server.baseUrl, '***', 'anyone'],
  );
  for (const { text } of [keys, nodes, stats, settings]) {
    for (const word of ['a secret for tests', 'hidden-word', '"d":', 'postgres://', 'sealed']) {
      assert.ok(!text.includes(word), word);
    }
  }
});

test('a cursor of another list or a forged one is refused', async () => {
  const cursors = [
    'AA',
    'gICA',
    'WyJ4IiwieSJd',
    'WyJcdTAwMDAiLCJ4Il0',
    'eHh4',
    'MDAwMC0wMS0wMVQwMDowMDowMC4wMDBaIDE',
  ];
  const paths = ['/apps', '/app-invitations', ...reads.map((name) => `/admin/${name}`)];
  const failing = '/admin/subscriptions?failing=true&limit=1';
  for (const path of [...paths, '/admin/apps?name=a', failing]) {
    for (const cursor of cursors) {
      const { status, text } = await admin.request(
        'GET',
        `${path}${path.includes('?') ? '&' : '?'}after=${cursor}`,
      );
      assert.ok([200, 400].includes(status), `${path} ${cursor}: ${text}`);
    }
  }
});

test('an invalid id is 404', async () => {
  for (const path of ['accounts', 'grants', 'subscriptions', 'apps']) {
    for (const id of ['x', '%00', newId(), "'", '%F0%9F%92%A9']) {
      assert.equal((await admin.request('GET', `/admin/${path}/${id}`)).status, 404, `${path}/${id}`);
    }
  }
});
