/**
 * The scripts of deploy/walk, which are the blocks of docs/production.md, from an installed package to an upgrade, with Debian's
 * PostgreSQL and nginx. An app subscribes and a publisher publishes through nginx from step 9 on, and every event that the server
 * accepted arrives: through restarts of nodes, a failover, a restore and an upgrade. Runs as an unprivileged user.
 */

import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import { existsSync, openSync, readdirSync } from 'node:fs';
import { chmod, chown, copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { promisify } from 'node:util';
import { authorize, type TestAccount, type TestClient } from '../support/clients/oauth.ts';
import { cleanEnvironment, pack } from '../support/programs/installed_package.ts';
import { freePort } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';
import { startTraffic, type Traffic } from '../support/whole/traffic.ts';

const checkout = join(import.meta.dirname, '../..');
const missing = findMissing();

if (missing !== null) test('the walk of docs/production.md', { skip: missing }, () => {});
else await walk();

function findMissing(): string | null {
  if (process.platform !== 'linux') return 'the walk is for Debian';
  const servers = existsSync('/usr/lib/postgresql') ? readdirSync('/usr/lib/postgresql') : [];
  const hasAll =
    servers.some((major) => Number(major) >= 15 && existsSync(`/usr/lib/postgresql/${major}/bin/initdb`)) &&
    ['/usr/sbin/nginx', '/usr/share/nginx/modules/ngx_stream_module.so'].every((path) => existsSync(path)) &&
    ['/usr/bin/openssl', '/usr/bin/curl'].every((path) => existsSync(path));
  return hasAll ? null : 'apt-get install postgresql nginx libnginx-mod-stream openssl curl';
}

async function walk(): Promise<void> {
  const root = await mkdtemp(join(tmpdir(), 'nuncio-walk-'));
  const folder = join(root, 'walk');
  const user = unprivilegedUser();
  const settings = await prepare(root, folder, user);
  let isEnded = false;
  after(async () => {
    if (!isEnded) await step('15-end.sh').catch(() => {});
    await rm(root, { recursive: true, force: true, maxRetries: 5 });
  });

  /** Runs a script until it exits; what it starts may continue. @returns what it printed */
  async function step(
    script: string,
    words: string[] = [],
    { asUser = true, input = '' } = {},
  ): Promise<string> {
    const log = join(root, `${script}.log`);
    const output = openSync(log, 'w');
    const from = asUser ? join(folder, 'versions/first/node_modules/nuncio') : checkout;
    const child = spawn('sh', [join(from, 'deploy/walk', script), ...words], {
      env: { ...settings, ...(asUser ? {} : { HOME: process.env.HOME }) },
      cwd: root,
      stdio: ['pipe', output, output],
      ...(asUser ? user : {}),
    });
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
    const code = await new Promise((resolve) => child.once('exit', resolve));
    const text = await readFile(log, 'utf8');
    assert.equal(code, 0, `${script} ended with ${code}:\n${text}`);
    return text;
  }
  const origin = `https://localhost:${settings.HTTPS_PORT}`;
  let traffic: Traffic | undefined;
  /** Every event that was accepted so far arrives. */
  const nothingIsLost = () => traffic?.arrived();

  await test('steps 1 to 5: the package, certificates, PostgreSQL with a standby, nginx', async () => {
    const installed = await step('01-install.sh', [], { asUser: false });
    assert.match(installed, /usage: nuncio <command>/);
    assert.match(await step('02-certificates.sh'), /certificate\.pem: OK/);
    await step('03-primary.sh');
    assert.match(await step('04-standby.sh'), /\| streaming \| sync/);
    assert.match(await step('05-proxy.sh'), /test is successful/);
  });

  await test('steps 6 to 8: three nodes, the doctor and the metrics', async () => {
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
  });

  await test('step 9: an app signs a user in, subscribes, and receives what is published', async () => {
    assert.match(await step('09-users.sh'), /published push as/);
    setDefaultCACertificates([
      ...getCACertificates('default'),
      await readFile(join(folder, 'tls/ca.pem'), 'utf8'),
    ]);
    traffic = await connectApp();
    await nothingIsLost();
  });

  async function connectApp(): Promise<Traffic> {
    const account = { email: 'ann@example.com', password: 'correct horse battery' };
    const created = ['user', 'create', '--email', account.email, '--password', '-', '--json'];
    const { id } = JSON.parse(await step('nuncio.sh', created, { input: account.password }));
    const redirectUri = 'https://app.example/callback';
    const registered = ['client', 'create', '--name', 'App', '--redirect-uri', redirectUri, '--json'];
    const client = JSON.parse(await step('nuncio.sh', registered));
    const subscriber = await startSubscriber({ after });
    const { accessToken } = await authorize(
      { baseUrl: origin },
      {
        account: { ...account, id } as TestAccount,
        client: {
          id: client.client_id,
          secret: client.client_secret,
          authMethod: 'client_secret_basic',
          redirectUri,
        } as TestClient,
        scopes: ['read:posts', 'read:webhooks', 'write:webhooks'],
      },
    );
    const subscribed = await fetch(`${origin}/subscriptions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ url: `${subscriber.url}/hooks`, kinds: ['push'] }),
    });
    assert.equal(subscribed.status, 201, await subscribed.text());
    const publisher = JSON.parse(await readFile(join(folder, 'secrets/publisher.json'), 'utf8'));
    return startTraffic({ after }, { origin, publisher, accountId: id, subscriber });
  }

  await test('step 10: nodes restart one after the other, and nothing is lost', async (t) => {
    await step('10-restart.sh');
    await nothingIsLost();
    t.diagnostic(`refused: ${traffic?.takeRefusals()}`);
  });

  await test('step 11: the primary is lost, the standby takes over, and nothing is lost', async (t) => {
    assertHealthy(await step('11-failover.sh'));
    await nothingIsLost();
    t.diagnostic(`refused: ${traffic?.takeRefusals()}`);
  });

  await test('step 12: a verified backup, and a dump that can be restored', async () => {
    const made = await step('12-backup.sh');
    assert.match(made, /backup successfully verified/);
    assert.match(made, /accounts\s+-+\s+2\n/);
    assertHealthy(made);
    await nothingIsLost();
  });

  await test('step 13: the backup and the archive become a new server, and nothing is lost', async (t) => {
    const restored = await step('13-restore.sh');
    assert.match(restored, /epoch/);
    assertHealthy(restored);
    await nothingIsLost();
    t.diagnostic(`refused: ${traffic?.takeRefusals()}`);
  });

  await test('step 14: the next version takes over node by node, and nothing is lost', async (t) => {
    settings.PACKAGE = await nextVersion(settings.PACKAGE as string, root);
    await step('01-install.sh', ['next'], { asUser: false });
    const upgraded = await step('14-upgrade.sh');
    assert.match(upgraded, /nuncio-version: 9\.9\.9/i);
    assertHealthy(upgraded);
    await nothingIsLost();
    t.diagnostic(`refused: ${traffic?.takeRefusals()}`);
  });

  await test('step 15: everything stops, and each event that was accepted arrived', async (t) => {
    const { accepted, received } = (await traffic?.end()) ?? { accepted: 0, received: 0 };
    assert.ok(accepted > 0 && received >= accepted);
    t.diagnostic(`${accepted} events accepted, ${received} deliveries received`);
    await step('15-end.sh');
    isEnded = true;
    for (const name of ['run/node-1.pid', 'run/node-3.pid']) {
      const pid = Number(await readFile(join(folder, name), 'utf8'));
      await until(
        async () => existsSync(`/proc/${pid}`),
        (runs) => !runs,
      );
    }
  });
}

/** The doctor found nothing wrong but what a busy machine causes. */
function assertHealthy(output: string): void {
  const found = output.match(/^(?:error|warning) .*$/gm) ?? [];
  const wrong = found.filter((line) => !/ node\.event_loop: | backlog\.| dead_rows: | clock: /.test(line));
  assert.deepEqual(wrong, [], output);
}

/** PostgreSQL refuses to run as root. */
function unprivilegedUser(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {};
  const id = (flag: string) => Number(execFileSync('id', [flag, 'nobody'], { encoding: 'utf8' }));
  return { uid: id('-u'), gid: id('-g') };
}

async function consecutivePorts(): Promise<number> {
  for (;;) {
    const first = await freePort();
    if ((await freePort()) === first + 1 && (await freePort()) === first + 2) return first;
  }
}

/** Packs the checkout, and creates the folder of the walk. @returns the environment of the scripts */
async function prepare(
  root: string,
  folder: string,
  { uid, gid }: { uid?: number; gid?: number },
): Promise<NodeJS.ProcessEnv> {
  await chmod(root, 0o755);
  await mkdir(join(root, 'bin'));
  await mkdir(folder);
  // The Node of this run, where another user may execute it.
  await copyFile(process.execPath, join(root, 'bin/node'));
  await chmod(join(root, 'bin/node'), 0o755);
  const packed = join(root, 'packed');
  await mkdir(packed);
  if (uid !== undefined && gid !== undefined) await chown(folder, uid, gid);
  const ports: Record<string, string> = {};
  const single = ['HTTPS', 'HTTP', 'DATABASE', 'PRIMARY', 'STANDBY', 'RESTORED'];
  for (const name of single) ports[`${name}_PORT`] = String(await freePort());
  ports.NODE_PORT = String(await consecutivePorts());
  ports.METRICS_PORT = String(await consecutivePorts());
  const { PATH, ...environment } = cleanEnvironment();
  return {
    ...environment,
    HOME: folder,
    PATH: [join(root, 'bin'), PATH].join(':'),
    WALK: folder,
    PACKAGE: await pack(packed),
    npm_config_audit: 'false',
    npm_config_fund: 'false',
    npm_config_prefer_offline: 'true',
    ...ports,
  };
}

/** The same package with another version number. */
async function nextVersion(archive: string, root: string): Promise<string> {
  const run = promisify(execFile);
  const unpacked = join(root, 'next');
  await mkdir(unpacked);
  await run('tar', ['-xzf', archive, '-C', unpacked]);
  const manifest = join(unpacked, 'package/package.json');
  const content = JSON.parse(await readFile(manifest, 'utf8'));
  await writeFile(manifest, JSON.stringify({ ...content, version: '9.9.9' }));
  const next = join(dirname(archive), 'nuncio-9.9.9.tgz');
  await run('tar', ['-czf', next, '-C', unpacked, 'package']);
  return next;
}
