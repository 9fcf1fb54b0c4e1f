/** The scripts of deploy/walk in a folder of their own: the packed checkout, free ports, and a user who is not root. */

import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import { existsSync, openSync, readdirSync } from 'node:fs';
import { chmod, chown, copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { freePort } from '../servers/server.ts';
import { cleanEnvironment, pack } from './installed_package.ts';

const checkout = join(import.meta.dirname, '../../..');

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export interface Walk {
  /** Everything that the scripts write is in it. */
  folder: string;
  /** The base URL. */
  origin: string;
  /**
   * Runs a script of the installed package until it exits. What it starts continues.
   * @returns what it printed
   * @throws AssertionError with what it printed, if it fails
   */
  step: (script: string, words?: string[], input?: string) => Promise<string>;
  /** Installs the packed checkout, or the same with another version number, as the user of this process does. */
  install: (words?: string[], version?: string) => Promise<string>;
}

/** @returns the command that installs what is missing for the walk, or null */
export function missingForWalk(): string | null {
  if (process.platform !== 'linux') return 'the walk is for Debian';
  const folder = '/usr/lib/postgresql';
  const majors = existsSync(folder) ? readdirSync(folder) : [];
  const hasAll =
    majors.some((major) => Number(major) >= 15 && existsSync(`${folder}/${major}/bin/initdb`)) &&
    [
      '/usr/sbin/nginx',
      '/usr/share/nginx/modules/ngx_stream_module.so',
      '/usr/bin/openssl',
      '/usr/bin/curl',
    ].every((path) => existsSync(path));
  return hasAll ? null : 'not installed: apt-get install postgresql nginx libnginx-mod-stream openssl curl';
}

export async function openWalk(scope: Scope): Promise<Walk> {
  const root = await mkdtemp(join(tmpdir(), 'nuncio-walk-'));
  const folder = join(root, 'walk');
  const user = unprivilegedUser();
  await createFolders(root, folder, user);
  const archive = await pack(join(root, 'packed'));
  const ports = await choosePorts();
  const { PATH, ...environment } = cleanEnvironment();
  const settings = { ...environment, PATH: `${join(root, 'bin')}:${PATH}`, WALK: folder, ...ports };
  const steps = join(folder, 'versions/first/node_modules/nuncio/deploy/walk');
  const runAsUser = (script: string, words: string[] = [], input = '') =>
    run(join(steps, script), words, join(root, 'output'), {
      // The user's own folder may not be readable.
      environment: { ...settings, HOME: folder },
      user,
      input,
    });
  scope.after(async () => {
    if (existsSync(join(folder, 'run'))) await runAsUser('15-end.sh').catch(() => {});
    await rm(root, { recursive: true, force: true, maxRetries: 5 });
  });
  return {
    folder,
    origin: `https://localhost:${ports.HTTPS_PORT}`,
    step: runAsUser,
    async install(words = [], version) {
      const quiet = {
        npm_config_audit: 'false',
        npm_config_fund: 'false',
        npm_config_prefer_offline: 'true',
      };
      const PACKAGE = version === undefined ? archive : await renumber(archive, version);
      const script = join(checkout, 'deploy/walk/01-install.sh');
      return run(script, words, join(root, 'output'), { environment: { ...settings, ...quiet, PACKAGE } });
    },
  };
}

interface Options {
  environment: NodeJS.ProcessEnv;
  user?: User;
  input?: string;
}

/** Output goes through a file: a pipe would stay open as long as what the script starts. */
async function run(script: string, words: string[], log: string, options: Options): Promise<string> {
  const output = openSync(log, 'w');
  const child = spawn('sh', [script, ...words], {
    env: options.environment,
    cwd: dirname(log),
    stdio: ['pipe', output, output],
    ...options.user,
  });
  child.stdin?.on('error', () => {});
  child.stdin?.end(options.input ?? '');
  const code = await new Promise((resolve) => child.once('exit', resolve));
  const text = await readFile(log, 'utf8');
  assert.equal(code, 0, `${script} ended with ${code}:\n${text}`);
  return text;
}

interface User {
  uid?: number;
  gid?: number;
}

/** PostgreSQL refuses to run as root. */
function unprivilegedUser(): User {
  if (process.getuid?.() !== 0) return {};
  const id = (flag: string) => Number(execFileSync('id', [flag, 'nobody'], { encoding: 'utf8' }));
  return { uid: id('-u'), gid: id('-g') };
}

async function createFolders(root: string, folder: string, { uid, gid }: User): Promise<void> {
  await chmod(root, 0o755);
  for (const path of [folder, join(root, 'bin'), join(root, 'packed')]) await mkdir(path);
  // The Node of this run, where another user may execute it.
  await copyFile(process.execPath, join(root, 'bin/node'));
  await chmod(join(root, 'bin/node'), 0o755);
  if (uid !== undefined && gid !== undefined) await chown(folder, uid, gid);
}

async function choosePorts(): Promise<Record<string, string>> {
  const ports: Record<string, string> = {};
  for (const name of ['HTTPS', 'HTTP', 'DATABASE', 'PRIMARY', 'STANDBY', 'RESTORED']) {
    ports[`${name}_PORT`] = String(await freePort());
  }
  ports.NODE_PORT = String(await consecutivePorts());
  ports.METRICS_PORT = String(await consecutivePorts());
  return ports;
}

/** @returns the first of three */
async function consecutivePorts(): Promise<number> {
  for (;;) {
    const first = await freePort();
    if ((await freePort()) === first + 1 && (await freePort()) === first + 2) return first;
  }
}

/** @returns the path of the same package with another version number */
async function renumber(archive: string, version: string): Promise<string> {
  const tar = promisify(execFile);
  const folder = dirname(archive);
  await tar('tar', ['-xzf', archive, '-C', folder]);
  const manifest = join(folder, 'package/package.json');
  const content = JSON.parse(await readFile(manifest, 'utf8'));
  await writeFile(manifest, JSON.stringify({ ...content, version }));
  const next = join(folder, `nuncio-${version}.tgz`);
  await tar('tar', ['-czf', next, '-C', folder, 'package']);
  return next;
}
