/**
 * The Model Context Protocol's conformance suite for authorization servers. It runs as a separate program against a
 * test server; a simulated user signs in and consents.
 */

import { spawn } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { TestBrowser } from '../browser/browser.ts';
import { freePort, type TestServer } from '../servers/server.ts';
import { passPages, type TestAccount } from './oauth.ts';

const program = fileURLToPath(import.meta.resolve('@modelcontextprotocol/conformance/dist/index.js'));

export interface Check {
  id: string;
  status: 'SUCCESS' | 'FAILURE' | 'WARNING' | 'SKIPPED' | 'INFO';
  errorMessage?: string;
}

export interface ConformanceRun {
  exitCode: number | null;
  output: string;
  /** The checks of all scenarios, from the suite's result files. */
  checks: Check[];
}

/** The client's redirect URI in the suite: loopback with any port (RFC 8252 section 7.3). */
export const conformanceRedirectUri = 'http://127.0.0.1/callback';

/** The names of the suite's scenarios for authorization servers. */
export async function listScenarios(): Promise<string[]> {
  const { output } = await run(['list', '--authorization'], async () => {});
  return [...output.matchAll(/^ +- (\S+)/gm)].map(([, name]) => name as string);
}

/** @param options a public client: the suite sends no secret to a server that also supports the method `none` */
export async function runConformance(
  { baseUrl }: Pick<TestServer, 'baseUrl'>,
  options: { account: TestAccount; clientId: string; resource?: string; specVersion?: string },
): Promise<ConformanceRun> {
  const { account, clientId, resource, specVersion } = options;
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-conformance-'));
  try {
    const words = ['authorization', '--url', baseUrl, '--client-id', clientId, '--output-dir', folder];
    words.push('--port', String(await freePort()));
    if (resource !== undefined) words.push('--resource', resource);
    if (specVersion !== undefined) words.push('--spec-version', specVersion);
    const { exitCode, output } = await run(words, async (url) => {
      const browser = new TestBrowser(baseUrl);
      await fetch(await passPages(browser, await browser.open(url), account));
    });
    return { exitCode, output, checks: await readChecks(folder) };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Runs all scenarios that a version of the protocol requires of servers. */
export async function runServerConformance(
  url: string,
  requirements: string,
): Promise<{ output: string; checks: ScenarioCheck[] }> {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-conformance-'));
  try {
    const words = ['server', '--url', url, '--requirements', requirements, '--output-dir', folder];
    const { output } = await run(words, async () => {});
    return { output, checks: await readScenarios(folder) };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** @param signIn called with the URL that the suite asks a person to open */
async function run(
  words: readonly string[],
  signIn: (url: string) => Promise<void>,
): Promise<{ exitCode: number | null; output: string }> {
  const child = spawn(process.execPath, [program, ...words], { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  let visit: Promise<void> | undefined;
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      const url = /^https?:\S+(?=\n)/m.exec(output)?.[0];
      if (visit !== undefined || url === undefined || !output.includes('Callback server started')) return;
      // Without a redirect to its callback, the suite would wait for minutes.
      visit = signIn(url).catch((error) => {
        output += `\n${error}`;
        child.kill();
      });
    });
  }
  const exitCode = await new Promise<number | null>((resolve) => child.once('close', resolve));
  await visit;
  return { exitCode, output };
}

export interface ScenarioCheck extends Check {
  scenario: string;
}

/** The suite writes a folder for each scenario, named after it and the time. */
async function readScenarios(folder: string): Promise<ScenarioCheck[]> {
  const files = (await readdir(folder, { recursive: true })).filter((file) => file.endsWith('checks.json'));
  const read = files.sort().map(async (file) => {
    const scenario = file.split('/').at(-2) ?? '';
    const checks = JSON.parse(await readFile(join(folder, file), 'utf8')) as Check[];
    return checks.map((check) => ({ ...check, scenario }));
  });
  return (await Promise.all(read)).flat();
}

async function readChecks(folder: string): Promise<Check[]> {
  const files = (await readdir(folder, { recursive: true })).filter((file) => file.endsWith('checks.json'));
  const texts = await Promise.all(files.sort().map((file) => readFile(join(folder, file), 'utf8')));
  return texts.flatMap((text) => JSON.parse(text) as Check[]);
}
