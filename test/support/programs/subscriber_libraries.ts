/**
 * The subscriber's libraries in other languages, as their registries would publish them: the wheel of clients/python, installed, and the
 * jar of clients/java. Each is built once, outside the checkout. If a language or a registry is missing, the reason is returned
 * and the test is skipped.
 */

import { execFile } from 'node:child_process';
import { cp, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Python, preparePython } from './python.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '..', '..', '..');
const requirements = join(checkout, 'test/interoperability/subscriber_libraries/requirements.txt');

export const clients = join(checkout, 'clients');

/** The file with the cases that all languages share. */
export const vectorFile = join(checkout, 'test/vectors/signatures.json');

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export interface Failure {
  stdout?: string;
  stderr?: string;
  message: string;
  code?: string | number;
}

export async function buildFolder(scope: Scope, name: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), `nuncio-${name}-`));
  scope.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Returns why a tool or a registry is missing, or undefined if the failure is one of the code itself. */
export function missingTool({ stdout = '', stderr = '', message, code }: Failure): string | undefined {
  if (code === 'ENOENT') return `not installed: ${message}`;
  const line = `${stdout}\n${stderr}`
    .split('\n')
    .find((each) =>
      /dial tcp|i\/o timeout|no such host|Could not (transfer|resolve)|Unknown host|proxyconnect|GOPROXY|requires go >=/.test(
        each,
      ),
    );
  return line && `its packages cannot be had: ${line.slice(0, 300)}`;
}

/** @returns Python with the library installed from its wheel, and the environment to run it in */
export async function installWheel(
  scope: Scope,
): Promise<{ python: string; wheel: string; env: NodeJS.ProcessEnv } | { missing: string }> {
  const prepared: Python = await preparePython(requirements);
  if ('missing' in prepared) return prepared;
  const folder = await buildFolder(scope, 'wheel');
  // The build could write beside the sources.
  await cp(join(clients, 'python'), join(folder, 'source'), { recursive: true });
  const options = ['--quiet', '--disable-pip-version-check', '--no-deps', '--no-index'];
  const build = ['wheel', ...options, '--no-build-isolation', '--wheel-dir', folder, join(folder, 'source')];
  const env = { ...process.env, PATH: `${prepared.bin('')}:${process.env.PATH}` };
  await run(prepared.bin('pip'), build, { env });
  const [wheel = ''] = (await readdir(folder)).filter((name) => name.endsWith('.whl'));
  const target = join(folder, 'installed');
  await run(prepared.bin('pip'), ['install', ...options, '--target', target, join(folder, wheel)], { env });
  return {
    python: prepared.bin('python'),
    wheel: join(folder, wheel),
    env: { ...env, PYTHONPATH: target, PYTHONDONTWRITEBYTECODE: '1', PYTHONUNBUFFERED: '1' },
  };
}

/** @returns the jar of the library. With `tests`, its tests have passed. */
export async function buildJar(
  scope: Scope,
  tests?: NodeJS.ProcessEnv,
): Promise<{ jar: string; folder: string } | { missing: string }> {
  const folder = await buildFolder(scope, 'java');
  const goal = tests === undefined ? ['-DskipTests', '-Dmaven.test.skip=true'] : [`-Dvectors=${vectorFile}`];
  const words = ['-B', '-q', '-f', join(clients, 'java'), `-DbuildFolder=${folder}`, ...goal, 'package'];
  try {
    await run('mvn', words, { env: { ...process.env, ...tests }, maxBuffer: 64 * 1024 * 1024 });
  } catch (error) {
    const missing = missingTool(error as Failure);
    if (missing === undefined) throw new Error(`${(error as Failure).stdout}`, { cause: error });
    return { missing };
  }
  return { jar: join(folder, 'nuncio-verify-0.1.0.jar'), folder };
}
