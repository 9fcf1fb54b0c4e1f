/**
 * The scripts of deploy/walk, which are the blocks of docs/production.md, from an installed package to an upgrade, with Debian's
 * PostgreSQL and nginx. An app subscribes and a publisher publishes through nginx from step 9 on, and every event that the server
 * accepted arrives: through restarts of nodes, a failover, a restore and an upgrade. Runs as an unprivileged user.
 */

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { authorize, type TestAccount, type TestClient } from '../support/clients/oauth.ts';
import { missingForWalk, openWalk, type Walk } from '../support/programs/walk.ts';
import { startTraffic, type Traffic } from '../support/publishing/traffic.ts';
import { until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const missing = missingForWalk();

if (missing !== null) test('the walk of docs/production.md loses no event', { skip: missing }, () => {});
else testWalk(await openWalk({ after }));

/** One test for each part, in this order. */
function testWalk(walk: Walk): void {
  const { step } = walk;
  let traffic: Traffic | undefined;
  // `after` within a test runs at the end of that test, and the traffic continues through all of them.
  const hooks: (() => Promise<void>)[] = [];
  const whole = { after: (hook: () => Promise<void>) => void hooks.push(hook) };
  after(async () => {
    for (const hook of hooks) await hook();
  });

  test('steps 1 to 5: the package, certificates, PostgreSQL with a standby, nginx', async () => {
    assert.match(await walk.install(), /usage: nuncio <command>/);
    assert.match(await step('02-certificates.sh'), /certificate\.pem: OK/);
    await step('03-primary.sh');
    assert.match(await step('04-standby.sh'), /\| streaming \| sync/);
    assert.match(await step('05-proxy.sh'), /test is successful/);
  });

  test('steps 6 to 8: three nodes, the doctor and the metrics', () => checkNodes(walk));

  test('step 9: an app signs a user in, subscribes, and receives what is published', async () => {
    assert.match(await step('09-users.sh'), /published push as/);
    const authority = await readFile(join(walk.folder, 'tls/ca.pem'), 'utf8');
    const before = getCACertificates('default');
    setDefaultCACertificates([...before, authority]);
    traffic = await connectApp(walk, whole);
    whole.after(async () => setDefaultCACertificates(before));
    await traffic.arrived();
  });

  const withoutLoss = (name: string, work: () => Promise<void>) =>
    test(name, async (part) => {
      assert.ok(traffic);
      await work();
      await traffic.arrived();
      part.diagnostic(`${traffic.takeRefusals()} requests were refused and repeated`);
    });
  testOperation(walk, withoutLoss);

  test('step 15: each event that was accepted has arrived, and everything stops', async (part) => {
    assert.ok(traffic);
    const { accepted, received } = await traffic.end();
    part.diagnostic(`${accepted} events were accepted, ${received} deliveries received`);
    assert.ok(received >= accepted);
    await step('15-end.sh');
    await assertStopped(walk);
  });
}

function testOperation(
  { step, install }: Walk,
  withoutLoss: (name: string, work: () => Promise<void>) => void,
) {
  withoutLoss('step 10: nodes restart one after the other', async () => {
    await step('10-restart.sh');
  });
  withoutLoss('step 11: the primary is lost, and the standby takes over', async () => {
    assertHealthy(await step('11-failover.sh'));
  });
  withoutLoss('step 12: a verified backup, and a dump that can be restored', async () => {
    const made = await step('12-backup.sh');
    assert.match(made, /backup successfully verified/);
    assert.match(made, / accounts \n-+\n +2\n/);
    assertHealthy(made);
  });
  withoutLoss('step 13: the backup and the archive become a new server', async () => {
    const restored = await step('13-restore.sh');
    assert.match(restored, /epoch \d+ begins/);
    assertHealthy(restored);
  });
  withoutLoss('step 14: the next version takes over node by node', async () => {
    await install(['next'], '9.9.9');
    const upgraded = await step('14-upgrade.sh');
    assert.match(upgraded, /nuncio-version: 9\.9\.9/i);
    assertHealthy(upgraded);
  });
}

async function checkNodes({ step }: Walk): Promise<void> {
  const nodes = await step('06-nodes.sh');
  assert.equal(nodes.match(/"status":"ok"/g)?.length, 3, nodes);
  const checked = await step('07-check.sh');
  assertHealthy(checked);
  assert.match(checked, /0 errors, 0 warnings, 0 notices; 10 checks are fine\n$/);
  const metrics = (await step('08-metrics.sh')).trim().split('\n');
  assert.ok(
    metrics.slice(0, 3).every((count) => Number(count) > 40),
    metrics.join(),
  );
  assert.deepEqual(metrics.slice(3, 5), ['401', '404']);
}

/** What runs until the end of the file. */
interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** Creates a user and an app with the commands of an operator, signs the user in, subscribes, and begins to publish. */
async function connectApp({ step, folder, origin }: Walk, whole: Scope): Promise<Traffic> {
  const account = { email: 'ann@example.com', password: 'correct horse battery' };
  const created = ['user', 'create', '--email', account.email, '--password', '-', '--json'];
  const { id } = JSON.parse(await step('nuncio.sh', created, account.password));
  const redirectUri = 'https://app.example/callback';
  const registered = ['client', 'create', '--name', 'App', '--redirect-uri', redirectUri, '--json'];
  const { client_id, client_secret } = JSON.parse(await step('nuncio.sh', registered));
  const client = { id: client_id, secret: client_secret, authMethod: 'client_secret_basic', redirectUri };
  const { accessToken } = await authorize(
    { baseUrl: origin },
    {
      account: { ...account, id } as TestAccount,
      client: client as TestClient,
      scopes: ['read:posts', 'read:webhooks', 'write:webhooks'],
    },
  );
  const subscriber = await startSubscriber(whole);
  const subscribed = await fetch(`${origin}/subscriptions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' },
    body: JSON.stringify({ url: `${subscriber.url}/hooks`, kinds: ['push'] }),
  });
  assert.equal(subscribed.status, 201, await subscribed.text());
  const publisher = JSON.parse(await readFile(join(folder, 'secrets/publisher.json'), 'utf8'));
  return startTraffic(whole, { origin, publisher, accountId: id, subscriber });
}

/** The doctor found nothing wrong but what a busy machine causes. */
function assertHealthy(output: string): void {
  const found = output.match(/^(?:error|warning) .*$/gm) ?? [];
  const wrong = found.filter((line) => !/ node\.event_loop: | backlog\.| dead_rows: | clock: /.test(line));
  assert.deepEqual(wrong, [], output);
}

async function assertStopped({ folder }: Walk): Promise<void> {
  for (const name of ['node-1', 'node-2', 'node-3']) {
    const pid = Number(await readFile(join(folder, 'run', `${name}.pid`), 'utf8'));
    await until(
      async () => existsSync(`/proc/${pid}`),
      (runs) => !runs,
    );
  }
}
