/**
 * The package, installed by npm into an empty folder and run by every supported version of Node: the server with its
 * embedded PostgreSQL, the commands, the example platform, and a custom declaration with its types.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chown, copyFile, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, normalize } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { fetchNode, install, openShell, type User } from '../support/programs/installed_package.ts';
import { freePort } from '../support/servers/server.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '..', '..');
const modules = join(checkout, 'node_modules');
const demo = fileURLToPath(new URL('../../examples/reader/main.ts', import.meta.url));
const file = { after };
const { folder, archive, output: installation } = await install(file);
const packed = join(folder, 'node_modules', 'nuncio');

/** A team's first configuration. */
const ownConfig = `import { defineConfig, defineEventKind, Type } from 'nuncio';

interface Note {
  id: string;
}
const example: Note = { id: 'n1' };

export default defineConfig({
  brand: { name: 'Acme', color: '#aa3300' },
  eventKinds: [
    defineEventKind({
      name: 'note.created',
      description: 'A note was written.',
      object: 'notes',
      schema: Type.Object({ note: Type.Object({ id: Type.String({ maxLength: 40 }) }) }),
      example: { note: example },
    }),
  ],
});
`;

const pushBody = { ref: 'refs/heads/main', commits: [], repository: { name: 'envoy' } };
const machineOptions = ['--grant', 'client_credentials', '--scope', 'write:events'];

/** The oldest version that `engines` permits, and the later long-term versions. */
const versions = ['~22.19', '24', '26'];
const ordinaryUser: User = { uid: 65_534, gid: 65_534 };
const isRoot = process.getuid?.() === 0;

for (const version of versions) {
  const found = await fetchNode(file, version);
  const skip = 'missing' in found ? found.missing : false;
  const node = 'node' in found ? found.node : '';
  // Users differ in how PostgreSQL starts, which does not depend on the Node version, so one version suffices.
  const others = isRoot && version === versions[0] ? [ordinaryUser] : [];
  for (const user of [null, ...others]) {
    const name = isRoot && user === null ? 'root' : 'an ordinary user';
    test(`the whole server runs on Node ${version} as ${name}`, { skip }, async (t) => {
      const work = await newWorkFolder(user);
      const port = String(await freePort());
      const shell = openShell(work, node, user, { PORT: port });
      const server = await shell.dev(t);
      const baseUrl = `http://localhost:${port}`;
      const { id: account } = JSON.parse(
        await shell.nuncio(
          'user',
          'create',
          '--email',
          'ann@example.com',
          '--password',
          'a long pass phrase',
          '--json',
        ),
      );
      const client = JSON.parse(
        await shell.nuncio('client', 'create', '--name', 'Bot', ...machineOptions, '--json'),
      );
      assert.equal(await publish(baseUrl, client, { kind: 'push', account, body: pushBody }), 202);
      assert.match(await shell.nuncio('trigger', 'push'), /push/);
      const consolePage = await (await fetch(`${baseUrl}/console`)).text();
      const [, script = ''] = /<script type="module"[^>]* src="([^"]+)"/.exec(consolePage) ?? [];
      assert.equal((await fetch(new URL(script, baseUrl))).status, 200, consolePage);
      assert.equal((await fetch(`${baseUrl}/docs/`)).status, 200);
      // The demo, as the server's user: an app, a sign-in, a consent, API calls, an event and signed webhooks.
      if (user === null) {
        const env = { ...process.env, PORT: port, NUNCIO_DATA_DIR: join(work, 'data') };
        const { stdout } = await run(process.execPath, [demo, '--once'], { env });
        assert.match(stdout, /Every step succeeded\.\n$/);
      }
      await server.interrupt();
      assert.match(server.output(), /stopped\s*$/);
      assert.doesNotMatch(server.output(), /Warning/);
    });
  }

  test(`a nuncio.config.ts of one’s own is read on Node ${version}`, { skip }, async (t) => {
    const work = await newWorkFolder(null);
    await writeFile(join(work, 'nuncio.config.ts'), ownConfig);
    const port = String(await freePort());
    const server = await openShell(work, node, null, { PORT: port }).dev(t);
    const kinds = await (await fetch(`http://localhost:${port}/asyncapi.json`)).text();
    assert.match(kinds, /note\.created/);
    assert.doesNotMatch(kinds, /article/);
    assert.match(await (await fetch(`http://localhost:${port}/`)).text(), /Acme/);
    await server.interrupt();
    assert.doesNotMatch(server.output(), /Warning/);
  });

  test(`passwords are checked alike on Node ${version}`, { skip }, async () => {
    const script = `import { hashPassword, verifyPassword } from ${JSON.stringify(join(packed, 'dist/crypto/passwords.js'))};
      const [stored] = process.argv.slice(2);
      console.log(JSON.stringify([await verifyPassword('secret', stored), await verifyPassword('wrong', stored), await hashPassword('secret')]));`;
    const path = join(folder, `passwords_${version}.mjs`);
    await writeFile(path, script);
    const { hashPassword, verifyPassword } = await import('../../src/crypto/passwords.ts');
    const { stdout } = await run(node, [path, await hashPassword('secret')]);
    const [right, wrong, made] = JSON.parse(stdout);
    assert.deepEqual([right, wrong], [true, false]);
    assert.ok(await verifyPassword('secret', made));
  });
}

test('an older Node is refused in one sentence', async () => {
  const old = await fetchNode(file, '20');
  if ('missing' in old) return;
  const failed = await run(old.node, [join(packed, 'dist/main.js'), 'dev']).catch((error) => error);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, /^nuncio: Node 20\.\S+ is too old: Nuncio runs on Node 22\.19 or later\.\n$/);
});

test('the executable and package.json agree on the oldest Node', async () => {
  const { engines } = JSON.parse(await readFile(join(packed, 'package.json'), 'utf8'));
  const { stdout } = await run('tar', ['-xzOf', archive, 'package/dist/main.js']);
  const [, major, minor] = /nodeMin = \[(\d+), (\d+)\]/.exec(stdout) ?? [];
  assert.equal(engines.node, `>=${major}.${minor}`);
});

test('it installs without what is for developers or for other machines', async () => {
  await assert.rejects(stat(join(folder, 'node_modules', 'node')), 'the user’s own Node runs it');
  await assert.rejects(stat(join(folder, 'node_modules', 'typescript')));
  assert.doesNotMatch(installation, /EBADENGINE|deprecated|npm error/);
});

for (const [module, resolution] of [
  ['nodenext', 'nodenext'],
  ['esnext', 'bundler'],
] as const) {
  test(`its types hold in a strict project without skipLibCheck, resolved by ${resolution}`, async (t) => {
    const work = await mkdtemp(join(tmpdir(), 'nuncio-types-'));
    t.after(() => rm(work, { recursive: true, force: true }));
    await symlink(join(folder, 'node_modules'), join(work, 'node_modules'));
    await writeFile(join(work, 'package.json'), '{"type":"module"}');
    await writeFile(join(work, 'nuncio.config.ts'), ownConfig);
    await copyFile(join(packed, 'dist', 'nuncio.config.ts'), join(work, 'example.ts'));
    await writeFile(
      join(work, 'wrong.ts'),
      `import { defineConfig } from 'nuncio';
       // @ts-expect-error: there is no such section
       export const a = defineConfig({ brands: {} });
       // @ts-expect-error: a color is a string
       export const b = defineConfig({ brand: { color: 3 } });`,
    );
    const options = { strict: true, noEmit: true, skipLibCheck: false, target: 'es2022', module, types: [] };
    await writeFile(
      join(work, 'tsconfig.json'),
      JSON.stringify({ compilerOptions: { ...options, moduleResolution: resolution }, include: ['*.ts'] }),
    );
    const tsc = join(modules, 'typescript', 'bin', 'tsc');
    const { stdout } = await run(process.execPath, [tsc, '-p', work]).catch((error) => error);
    assert.equal(stdout, '');
  });
}

test('publint and Are The Types Wrong find nothing', async () => {
  const { publint } = await import('publint');
  const { messages } = await publint({ pkgDir: packed, strict: true, pack: false });
  assert.deepEqual(messages, []);
  const attw = join(modules, '@arethetypeswrong', 'cli', 'dist', 'index.js');
  const words = [attw, archive, '--profile', 'esm-only', '--format', 'ascii'];
  const { code = 0, stdout } = await run(process.execPath, words).catch((error) => error);
  assert.equal(code, 0, stdout);
});

test('it has no file that does not belong, and none names one that is not there', async () => {
  const { stdout } = await run('tar', ['-tzf', archive]);
  const files = stdout
    .trim()
    .split('\n')
    .map((name) => name.replace(/^package\//, ''));
  const known =
    /^(LICENSE|README\.md|CHANGELOG\.md|SECURITY\.md|package\.json|(dist|migrations|docs|build\/console)\/.+)$/;
  assert.deepEqual(
    files.filter((name) => !known.test(name)),
    [],
  );
  const strange = files.filter((name) => /\.(tsx|map|sha256)$|\.test\.|generated/.test(name));
  assert.deepEqual(strange, []);
  const sources = files.filter((name) => /(?<!\.d)\.ts$/.test(name));
  assert.deepEqual(sources, ['dist/nuncio.config.ts']);
  const has = new Set(files);
  const lost: string[] = [];
  for (const name of files.filter((each) => /\.(js|css|md)$/.test(each))) {
    const text = await readFile(join(packed, name), 'utf8');
    if (/[#@] sourceMappingURL=/.test(text)) lost.push(`${name}: a source map`);
    if (!name.endsWith('.md')) continue;
    for (const [, link = ''] of text.matchAll(/\]\((?![a-z]+:|#)([^)#\s]+)/g)) {
      const target = normalize(join(dirname(name), link));
      // The examples, tests and benchmarks exist only in the repository.
      const isElsewhere =
        /^(examples|test|bench)\/|^(ARCHITECTURE|CONTRIBUTING)\.md$|^nuncio\.config\.ts$/.test(target);
      if (isElsewhere) await stat(join(checkout, target));
      else if (!has.has(target)) lost.push(`${name}: ${link}`);
    }
  }
  assert.deepEqual(lost, []);
});

async function publish(
  baseUrl: string,
  client: { client_id: string; client_secret: string },
  event: object,
): Promise<number> {
  const secret = Buffer.from(`${client.client_id}:${client.client_secret}`).toString('base64');
  const answer = await fetch(`${baseUrl}/oauth/token`, {
    method: 'POST',
    headers: { authorization: `Basic ${secret}` },
    body: new URLSearchParams({ grant_type: 'client_credentials', scope: 'write:events' }),
  });
  const { access_token: token } = (await answer.json()) as { access_token: string };
  const published = await fetch(`${baseUrl}/events`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(event),
  });
  return published.status;
}

/** Creates a separate folder for each run, with the installed packages. */
async function newWorkFolder(user: User): Promise<string> {
  const work = await mkdtemp(join(tmpdir(), 'nuncio-work-'));
  after(() => rm(work, { recursive: true, force: true }));
  await symlink(join(folder, 'node_modules'), join(work, 'node_modules'));
  await copyFile(join(folder, 'package.json'), join(work, 'package.json'));
  if (user !== null) await chown(work, user.uid, user.gid);
  return work;
}
