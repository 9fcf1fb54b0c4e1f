/**
 * The package as npm publishes it: `nuncio/protect` from plain JavaScript and from TypeScript, in a folder without
 * anything else of this project.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { pack } from '../support/programs/installed_package.ts';
import { prepareProcess, startProcess } from '../support/servers/process.ts';
import { startTestServer } from '../support/servers/server.ts';
import { appScopes, publish, subscribe } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '../..');
const modules = await realpath(join(checkout, 'node_modules'));

const folder = await mkdtemp(join(tmpdir(), 'nuncio-package-'));
after(() => rm(folder, { recursive: true, force: true }));
const files = await install();

/** Packs, and unpacks into an empty folder, together with only the dependencies of `nuncio/protect`. */
async function install(): Promise<string[]> {
  const target = join(folder, 'node_modules', 'nuncio');
  await mkdir(target, { recursive: true });
  const archive = await pack(folder);
  await run('tar', ['-xzf', archive, '--strip-components=1', '-C', target]);
  for (const name of ['jose', 'lru-cache']) {
    await symlink(join(modules, name), join(folder, 'node_modules', name));
  }
  await writeFile(join(folder, 'package.json'), '{"type":"module"}');
  const listing = await run('tar', ['-tzf', archive]);
  return listing.stdout.trim().split('\n');
}

async function runScript(text: string, ...parameters: string[]): Promise<string> {
  const file = join(folder, 'script.js');
  await writeFile(file, text);
  const { stdout } = await run(process.execPath, [file, ...parameters], { cwd: folder });
  return stdout;
}

test('the package contains what runs, and no tests', () => {
  const has = (name: string) => files.includes(`package/${name}`);
  const code = [
    'cli.js',
    'index.js',
    'index.d.ts',
    'nuncio.config.js',
    'outbox/outbox.js',
    'protect/protect.js',
    'library.js',
    'verify/verify.js',
    'web/pages.css',
  ];
  for (const name of code) assert.ok(has(`dist/${name}`), name);
  assert.ok(has('migrations/0001_foundation.sql'));
  assert.ok(has('LICENSE'));
  assert.ok(has('build/console/index.html'));
  const strange = files.filter((name) => /^package\/(src|test|bench|examples|data)\//.test(name));
  assert.deepEqual(strange, []);
});

test('plain JavaScript imports nuncio/protect and checks a real token with it', async () => {
  const server = await startTestServer({ after });
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const output = await runScript(
    `import { createProtector } from 'nuncio/protect';
     const [issuer, token] = process.argv.slice(2);
     const protect = createProtector({ issuer, url: 'https://notes.example', audience: issuer, offline: true });
     const ask = (authorization) =>
       protect.check({ method: 'GET', url: '/notes', headers: { authorization } }, 'read:posts');
     const good = await ask('Bearer ' + token);
     const bad = await ask('Bearer ' + token + 'x');
     console.log(JSON.stringify([good.granted, good.principal?.accountId, bad.status]));`,
    server.baseUrl,
    accessToken,
  );
  assert.deepEqual(JSON.parse(output), [true, account.id, 401]);
});

test('the package’s types compile alone in a strict TypeScript project', async () => {
  await writeFile(
    join(folder, 'consumer.ts'),
    `import { createServer } from 'node:http';
     import { createRelay, sqliteOutbox } from 'nuncio/outbox';
     import { createProtector, createPublisher, type Principal } from 'nuncio/protect';
     const protect = createProtector({ issuer: 'http://localhost:3000', url: 'http://localhost:4100', audience: 'http://localhost:4100', offline: true });
     createServer(protect.http(['read:notes'], (_request, response, principal: Principal) => {
       response.end(principal.accountId ?? 'nobody');
     }));
     const publisher = createPublisher({ issuer: 'http://localhost:3000', clientId: 'a', clientSecret: 'b' });
     export const ids: Promise<string[]> = publisher.publish({ kind: 'a.b', account: 'c', body: {} });
     import { DatabaseSync } from 'node:sqlite';
     const database = new DatabaseSync(':memory:');
     const outbox = sqliteOutbox({ database });
     export const id: string = outbox.append(database, { kind: 'a.b', account: { external_id: 'c' }, body: {} });
     createRelay({ store: outbox, publisher }).start();
     import { type Delivery, once, sqliteStore, verify } from 'nuncio/verify';
     const delivery: Promise<Delivery> = verify({ headers: new Headers(), body: '', secret: 'whsec_a' });
     export const isNew: Promise<boolean> = delivery.then((one) => once(sqliteStore(database))(one, ({ kind }) => kind));
     // @ts-expect-error: an option that there is none of
     createProtector({ issuer: 'http://localhost:3000', url: 'http://localhost:4100', audience: 'http://localhost:4100', ofline: true });`,
  );
  await writeFile(
    join(folder, 'tsconfig.json'),
    JSON.stringify({
      compilerOptions: {
        strict: true,
        noEmit: true,
        target: 'esnext',
        module: 'nodenext',
        types: ['node'],
        typeRoots: [join(modules, '@types')],
      },
      files: ['consumer.ts'],
    }),
  );
  const tsc = join(modules, 'typescript', 'bin', 'tsc');
  const { stdout } = await run(process.execPath, [tsc, '-p', folder]).catch((error) => error);
  assert.equal(stdout, '');
});

test('the installed server has the example platform and accepts a custom declaration', async () => {
  // From here on, with all dependencies of the package. It includes Kysely.
  for (const name of await readdir(modules)) {
    if (name.startsWith('.') || name === 'kysely') continue;
    await symlink(join(modules, name), join(folder, 'node_modules', name)).catch(() => {});
  }
  await writeFile(
    join(folder, 'nuncio.config.ts'),
    `import { defineConfig, defineEventKind, Type } from 'nuncio';
     export default defineConfig({
       oauth: { resources: ['https://notes.example.com'] },
       eventKinds: [
         defineEventKind({
           name: 'note.created',
           description: 'A note was written.',
           object: 'notes',
           schema: Type.Object({ note: Type.Object({ id: Type.String(), text: Type.String() }) }),
           example: { note: { id: 'n1', text: 'Buy milk' } },
         }),
       ],
     });`,
  );
  const output = await runScript(
    `const [file, ownFile] = process.argv.slice(2);
     const { loadPlatform } = await import(file);
     const shipped = await loadPlatform(null);
     const own = await loadPlatform(ownFile);
     console.log(JSON.stringify([shipped.collections.map(({ table }) => table), own.objects]));`,
    join(folder, 'node_modules', 'nuncio', 'dist', 'platform.js'),
    join(folder, 'nuncio.config.ts'),
  );
  assert.deepEqual(JSON.parse(output), [['articles'], ['notes']]);
});

test('the command prints its version', async () => {
  const cli = join(folder, 'node_modules', 'nuncio', 'dist', 'cli.js');
  const { stdout } = await run(process.execPath, [cli, '--version']);
  assert.match(stdout, /^\d+\.\d+\.\d+/);
});

test('the installed server starts its thread and delivers', async (t) => {
  // Not the declaration in the checkout, which imports the checkout's sources.
  const declaration = join(folder, 'node_modules', 'nuncio', 'dist', 'nuncio.config.js');
  const server = await prepareProcess(t, { NUNCIO_CONFIG: declaration });
  const { settings } = server;
  const installed = join(folder, 'node_modules', 'nuncio', 'dist', 'cli.js');
  const nuncio = startProcess(t, ['start'], settings, [], installed);
  await nuncio.ready();
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: [...appScopes, 'write:events'] });
  const forUser = await mintAccessToken(server, { account, client, scopes: appScopes });
  const forMachine = await mintAccessToken(server, { client, scopes: ['write:events'] });
  const subscriber = await startSubscriber(t);
  await subscribe({ request: requester(server, forUser.accessToken) }, { url: subscriber.url });
  await publish(requester(server, forMachine.accessToken), account, ['packed']);
  const [received] = await subscriber.waitFor(1);
  assert.equal(JSON.parse(received?.body as string).ref, 'refs/heads/packed');
  assert.equal(await nuncio.end('SIGTERM'), 0);
});
