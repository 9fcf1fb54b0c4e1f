/** The demo over HTTP. demo_browser.test.ts has it in a browser. */

import assert from 'node:assert/strict';
import { type ChildProcess, execFile } from 'node:child_process';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Environment } from '../../src/config/environment.ts';
import { runCommand, startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';
import { demo, startReader } from './reader.ts';

let settings: Environment;
const opened = new AsyncDisposableStack();
const file = { after: (close: () => Promise<void>) => opened.defer(close) };

before(async () => {
  settings = { NUNCIO_DATA_DIR: await temporaryFolder(file), PORT: String(await freePort()) };
  await startProcess(file, ['dev'], settings).ready();
});

after(() => opened.disposeAsync());

/** Runs an example until it exits. */
function runExample(file: string, words: string[], environment: Environment) {
  return new Promise<{ code: number; output: string }>((resolve) => {
    execFile(
      process.execPath,
      [file, ...words],
      { env: { ...process.env, ...environment } },
      (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : Number(error.code), output: stdout + stderr });
      },
    );
  });
}

test('every example has --help, and refuses unknown options with its usage', async () => {
  for (const name of ['reader', 'agent', 'own-api', 'existing-app']) {
    const file = fileURLToPath(new URL(`../../examples/${name}/main.ts`, import.meta.url));
    const help = await runExample(file, ['--help'], {});
    assert.deepEqual([help.code, help.output.split(' ', 1)[0]], [0, 'usage:'], help.output);
    const unknown = await runExample(file, ['--twice'], {});
    assert.equal(unknown.code, 2, unknown.output);
    assert.match(unknown.output, /^Unknown option '--twice'[^\n]*\n\nusage: npm run /);
  }
});

test('the demo fails in one line beside a server that uses another database', async (t) => {
  const failed = await runExample(demo, ['--once'], {
    ...settings,
    NUNCIO_DATA_DIR: await temporaryFolder(t),
  });
  assert.equal(failed.code, 1);
  assert.match(
    failed.output,
    /^✗ the server at http:\/\/localhost:\d+ does not use [^\n]+NUNCIO_DATA_DIR[^\n]+\n$/,
  );
  const elsewhere = await runExample(demo, [], { ...settings, PORT: String(await freePort()) });
  assert.equal(elsewhere.code, 1);
  assert.match(
    elsewhere.output,
    /^✗ the server that uses [^\n]+ is at http:\/\/localhost:\d+, not at [^\n]+\n$/,
  );
});

test('every step of npm run demo -- --once succeeds, on any port of the server', async () => {
  const { NUNCIO_DATA_DIR } = settings;
  const { code, output } = await runExample(demo, ['--once'], { NUNCIO_DATA_DIR: String(NUNCIO_DATA_DIR) });
  assert.equal(code, 0, output);
  for (const library of ['stripe', '@octokit/webhooks-methods', 'standardwebhooks']) {
    assert.match(output, new RegExp(`verified by ${library}`));
  }
  assert.match(output, /Every step succeeded\.\n$/);
});

test('every step of npm run demo:agent -- --once succeeds with an unmodified client', async () => {
  const { NUNCIO_DATA_DIR } = settings;
  const file = fileURLToPath(new URL('../../examples/agent/main.ts', import.meta.url));
  const { code, output } = await runExample(file, ['--once'], { NUNCIO_DATA_DIR: String(NUNCIO_DATA_DIR) });
  assert.equal(code, 0, output);
  const steps = [
    /registered as \S+/,
    /the user signed in and consented to read:posts write:posts read:profile/,
    /the model called article_publish/,
    /subscribed to invoice\.paid .* as sub_[0-9a-f]{32}/,
    /received invoice\.paid of invoice large, verified by @ai-sdk\/mcp/,
    /disconnected the agent: its subscription ended, with one last signed message/,
    /Every step succeeded\.\n$/,
  ];
  for (const step of steps) assert.match(output, step);
});

test('the demo deletes the app that a killed demo left', async (t) => {
  const port = await freePort();
  const scope = { after: () => undefined };
  let killed: ChildProcess | undefined;
  await startReader(scope, settings, port, (child) => {
    killed = child;
  });
  killed?.kill('SIGKILL');
  await startReader(t, settings, port);
  const { stdout } = await runCommand(['client', 'list', '--json'], settings);
  const uri = `http://localhost:${port}/callback`;
  const apps = JSON.parse(stdout) as { redirect_uris: string[] }[];
  assert.equal(apps.filter(({ redirect_uris: uris }) => uris.includes(uri)).length, 1);
});
