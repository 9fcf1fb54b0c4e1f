/**
 * Programs in Python against the endpoint for agents: the SDK of the protocol's authors, and `mcpcheck`, which tests servers of the
 * version 2026-07-28. Skipped where Python or its packages are missing.
 */

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { TestBrowser } from '../support/browser/browser.ts';
import { createAgent, startCallback, subscribeAgent, verified } from '../support/clients/agent_callback.ts';
import { mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient, passPages } from '../support/clients/oauth.ts';
import { type Python, preparePython } from '../support/programs/python.ts';
import { startTestServer } from '../support/servers/server.ts';
import { agentSecret } from '../support/webhooks/agents.ts';
import { createPublisher, publish, pushBody, until } from '../support/webhooks/apps.ts';
import type { Received } from '../support/webhooks/subscriber.ts';

const run = promisify(execFile);
const folder = join(import.meta.dirname, 'mcp_python');
const server = await startTestServer({ after });
const account = await createTestAccount(server);
const url = `${server.baseUrl}/mcp`;
let python: Promise<Python> | undefined;

/** @returns undefined if the test is marked as skipped */
async function findPython(t: TestContext) {
  python ??= preparePython(join(folder, 'requirements.txt'));
  const prepared = await python;
  if (!('missing' in prepared)) return prepared;
  t.skip(prepared.missing);
  return undefined;
}

/** @returns the output of a program, or undefined if the test is marked as skipped */
async function runPython(t: TestContext, program: string, ...words: string[]): Promise<string | undefined> {
  const prepared = await findPython(t);
  if (prepared === undefined) return undefined;
  return (await run(prepared.bin(program), words, { env: environment })).stdout;
}

const environment = { PATH: process.env.PATH, PYTHONUTF8: '1' };

for (const [mode, version] of [
  ['auto', '2026-07-28'],
  ['legacy', '2025-11-25'],
] as const) {
  test(`the Python SDK in mode ${mode} signs a user in with the URL alone and uses the tools`, async (t) => {
    const prepared = await findPython(t);
    if (prepared === undefined) return;
    const words = [join(folder, 'use_mcp.py'), url, mode];
    const stdio: ['pipe', 'pipe', 'inherit'] = ['pipe', 'pipe', 'inherit'];
    const child = spawn(prepared.bin('python'), words, { env: environment, stdio });
    t.after(() => child.kill('SIGKILL'));
    let result: Record<string, unknown> = {};
    for await (const line of createInterface(child.stdout)) {
      result = JSON.parse(line);
      if (typeof result.open !== 'string') continue;
      const browser = new TestBrowser(server.baseUrl);
      const callback = await passPages(browser, await browser.open(result.open), account);
      child.stdin.write(`${callback.href}\n`);
    }
    assert.equal(result.version, version);
    assert.equal((result.tools as string[]).length, 8);
    assert.equal(result.title, 'Written in Python');
    assert.deepEqual(result.refused, [true, 'The arguments are not valid: title is required.']);
  });
}

test('mcpcheck finds nothing wrong, warnings included', async (t) => {
  // The program ends with 1 for a failure or a warning, and with 2 if it could check nothing.
  const prepared = await findPython(t);
  if (prepared === undefined) return;
  const { accessToken } = await mcpToken(server, {
    account,
    client: await createTestClient(server),
    scopes: ['read:posts', 'write:posts'],
  });
  const env = { ...environment, MCPCHECK_TOKEN: accessToken };
  const { stdout } = await run(prepared.bin('mcpcheck'), [url, '--strict', '--legacy-probes'], { env });
  assert.match(stdout, /All 8 checks passed/);
});

test('mcp-webhook-events sends the same messages to the same callback', async (t) => {
  const callback = await startCallback(t);
  const agent = await createAgent(server);
  const data = pushBody('compared');
  const params = { name: 'push', arguments: {}, delivery: { mode: 'webhook', secret: agentSecret } };
  const words = [`${callback.url}/python`, JSON.stringify(params), JSON.stringify(data)];
  const output = await runPython(t, 'python', join(folder, 'send_events.py'), ...words);
  if (output === undefined) return;
  const other = JSON.parse(output);
  assert.deepEqual(other.sent, { delivered: 1, retrying: 0, failed: 0 });
  const result = await subscribeAgent(server, agent, `${callback.url}/own`);
  await publish(await createPublisher(server), agent.account, ['compared']);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 2,
  );
  // This server adds the type of the result and, in its metadata, the server.
  const { resultType: _type, _meta, ...own } = result as unknown as Record<string, unknown>;
  assert.deepEqual(Object.keys(own).toSorted(), Object.keys(other.result).toSorted());
  const ofPath = (path: string) => callback.received.filter((received) => received.path === path);
  const [theirs, ours] = [ofPath('/python'), ofPath('/own')];
  const protocolHeaders = ({ headers }: Received) =>
    Object.keys(headers).filter((name) => /^(webhook-|x-mcp-|content-type)/.test(name));
  for (const [index, received] of theirs.entries()) {
    const sent = ours[index] as Received;
    assert.deepEqual(protocolHeaders(sent).toSorted(), protocolHeaders(received).toSorted());
    const members = (text: string) => Object.keys(JSON.parse(text)).toSorted();
    assert.deepEqual(members(sent.body), members(received.body));
  }
  assert.deepEqual(verified(ours[1] as Received).data, verified(theirs[1] as Received).data);
});

test('the Python library of Standard Webhooks verifies deliveries', async (t) => {
  const callback = await startCallback(t);
  const agent = await createAgent(server);
  await subscribeAgent(server, agent, callback.url);
  await publish(await createPublisher(server), agent.account, ['é and 😀']);
  const received = await callback.waitFor(2);
  const deliveries = received.map(({ headers, body }) => ({ headers, body, secret: agentSecret }));
  const output = await runPython(t, 'python', join(folder, 'verify_events.py'), JSON.stringify(deliveries));
  if (output === undefined) return;
  assert.deepEqual(
    JSON.parse(output),
    received.map(({ body }) => JSON.parse(body)),
  );
});
