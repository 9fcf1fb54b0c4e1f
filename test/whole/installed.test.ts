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
import {
  cleanEnvironment,
  fetchNode,
  install,
  openShell,
  type User,
} from '../support/programs/installed_package.ts';
import { prepareNodePackage } from '../support/programs/node_package.ts';
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

/** The lines of the README for an installation in an empty folder. */
const readme = await readFile(join(packed, 'README.md'), 'utf8');
const [, block = ''] = /```sh\n(npm init -y\n[\s\S]*?)```/.exec(readme) ?? [];
const [, , copyLine = '', ...otherLines] = block.trim().split('\n');

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
      // Without it, dev runs the example as well.
      if (user === null) await run('sh', ['-ec', copyLine], { cwd: work });
      const port = String(await freePort());
      const shell = openShell(work, node, user, { PORT: port });
      const server = await shell.dev(t);
      const baseUrl = `http://localhost:${port}`;
      await callAsPrinted(server.output());
      assert.match(server.output(), /npx nuncio trigger push/);
      const startPage = await (await fetch(baseUrl)).text();
      assert.match(startPage, /npx nuncio trigger push/);
      assert.doesNotMatch(server.output() + startPage, /npm run/);
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
    const shell = openShell(work, node, null, { PORT: port });
    const server = await shell.dev(t);
    const kinds = await (await fetch(`http://localhost:${port}/asyncapi.json`)).text();
    assert.match(kinds, /note\.created/);
    assert.doesNotMatch(kinds, /article/);
    const startPage = await (await fetch(`http://localhost:${port}/`)).text();
    assert.match(startPage, /Acme/);
    for (const text of [startPage, server.output()]) assert.match(text, /npx nuncio trigger note\.created/);
    assert.match(await shell.nuncio('trigger', 'note.created'), /published note\.created/);
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

// `npm init` writes "commonjs", which the tests above have.
for (const type of ['module', undefined]) {
  test(`dev runs where package.json has ${type === undefined ? 'no type' : `the type ${type}`}`, async (t) => {
    const work = await newWorkFolder(null);
    const { type: _given, ...manifest } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8'));
    await writeFile(join(work, 'package.json'), JSON.stringify({ ...manifest, type }));
    await run('sh', ['-ec', copyLine], { cwd: work });
    const port = String(await freePort());
    const server = await openShell(work, process.execPath, null, { PORT: port }).dev(t);
    assert.equal((await fetch(`http://localhost:${port}/readyz`)).status, 200);
    await server.interrupt();
    assert.doesNotMatch(server.output(), /Warning/);
  });
}

/** Bytes of the archive that npm downloads. */
const archiveBytesMax = 3_000_000;

test('the archive is small, and its bill of materials names what it installs', async () => {
  const { size } = await stat(archive);
  assert.ok(size < archiveBytesMax, `${size} bytes`);
  // Not in the checkout with `--omit dev`: npm then leaves out dependencies that packages for developers have as well.
  const options = { cwd: folder, env: cleanEnvironment(), maxBuffer: 16 * 1024 * 1024 };
  const { stdout } = await run('npm', ['sbom', '--sbom-format', 'cyclonedx'], options);
  const { components } = JSON.parse(stdout) as { components: { name: string }[] };
  const names = new Set(components.map(({ name }) => name));
  const { dependencies } = JSON.parse(await readFile(join(packed, 'package.json'), 'utf8'));
  assert.deepEqual(
    Object.keys(dependencies).filter((name) => !names.has(name)),
    [],
  );
  assert.ok(!names.has('typescript'));
});

test('the README’s lines for an empty folder are those that these tests run', async () => {
  assert.match(block, /^npm init -y\nnpm install \S+\/nuncio-\d+\.\d+\.\d+\.tgz\ncp /);
  assert.deepEqual(otherLines, ['npx nuncio dev']);
  assert.match(block, new RegExp(archive.slice(archive.lastIndexOf('/')).replaceAll('.', '\\.')));
  const { type } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8'));
  assert.equal(type, 'commonjs');
});

test('start in an empty folder names the files that it looked for', async (t) => {
  const work = await newWorkFolder(null);
  const failed = await openShell(work, process.execPath, null, {})
    .nuncio('start')
    .catch((error) => error);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, /^nuncio: NUNCIO_CONFIG is not set: [^\n]+nuncio\.config\.ts[^\n]+\n$/);
  await assert.rejects(stat(join(work, 'data')));
  t.diagnostic(failed.stderr);
});

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
       import { createServer } from 'nuncio/server';
       export const address: Promise<string> = createServer(defineConfig({})).then((server) => server.address);
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

test('publint and Are The Types Wrong find nothing', async (t) => {
  const { publint } = await import('publint');
  const { messages } = await publint({ pkgDir: packed, strict: true, pack: false });
  assert.deepEqual(messages, []);
  const tool = await prepareNodePackage('@arethetypeswrong/cli', '0.18.5');
  if ('missing' in tool) return t.skip(tool.missing);
  const attw = join(tool.folder, 'dist', 'index.js');
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
    /^(LICENSE|README\.md|CHANGELOG\.md|SECURITY\.md|package\.json|(dist|migrations|docs|build\/console|deploy\/(grafana|prometheus|systemd|walk))\/.+)$/;
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
    for (const [, link = '', anchor] of text.matchAll(/\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)/g)) {
      const target = link === '' ? name : normalize(join(dirname(name), link));
      if (anchor !== undefined && !(await anchorsOf(target)).has(anchor))
        lost.push(`${name}: ${link}#${anchor}`);
      if (!has.has(target)) lost.push(`${name}: ${link}`);
    }
  }
  assert.deepEqual(lost, []);
});

/** The anchors of a document's headings, as GitHub and npm make them. */
async function anchorsOf(name: string): Promise<Set<string>> {
  const text = await readFile(join(packed, name), 'utf8').catch(() => '');
  const headings = [...text.matchAll(/^#+ (.+)$/gm)].map(([, title = '']) => title.toLowerCase());
  return new Set(headings.map((title) => title.replace(/[^\p{L}\p{N}\s_-]/gu, '').replaceAll(' ', '-')));
}

/** Calls the API with a token, by the `curl` line that the server has printed. */
async function callAsPrinted(output: string): Promise<void> {
  const [, login = '', body = '', url = ''] = /curl -u (\S+) -d (\S+) (\S+)/.exec(output) ?? [];
  const authorization = `Basic ${Buffer.from(login).toString('base64')}`;
  const answer = await fetch(url, {
    method: 'POST',
    headers: { authorization },
    body: new URLSearchParams(body),
  });
  const { access_token: token } = (await answer.json()) as { access_token: string };
  const api = await fetch(new URL('/api', url), { headers: { authorization: `Bearer ${token}` } });
  assert.equal(api.status, 200, output);
  assert.deepEqual(((await api.json()) as { client: object }).client, { id: 'demo' });
}

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
