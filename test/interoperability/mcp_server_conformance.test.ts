/**
 * The scenarios of the conformance suite for servers, against the endpoint for agents. The suite sends no token, so a proxy adds
 * one. Scenarios that need features or test tools that this server does not have fail in the way that is listed here.
 */

import assert from 'node:assert/strict';
import { createServer, request as forward } from 'node:http';
import { after, test } from 'node:test';
import shipped from '../../nuncio.config.ts';
import { defineTool, ToolError, Type } from '../../src/index.ts';
import { createPlatform } from '../../src/platform.ts';
import { mcpToken } from '../support/clients/mcp_client.ts';
import { runServerConformance } from '../support/clients/mcp_conformance.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';

const proxyPort = await freePort();
const proxyUrl = `http://localhost:${proxyPort}`;
/** Tools that the suite calls. */
const tools = [
  defineTool({
    name: 'test_simple_text',
    description: 'Returns a text.',
    input: Type.Object({}, { additionalProperties: false }),
    output: Type.Object({ text: Type.String() }),
    scope: 'read:posts',
    handler: () => ({ text: 'This is a simple text response for testing.' }),
  }),
  defineTool({
    name: 'test_error_handling',
    description: 'Fails.',
    input: Type.Object({}, { additionalProperties: false }),
    output: Type.Object({}),
    scope: 'read:posts',
    handler: () => {
      throw new ToolError('This tool intentionally returns an error for testing');
    },
  }),
];
const platform = createPlatform({ ...shipped, tools, mcp: { enabled: true, allowedOrigins: [proxyUrl] } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const { accessToken } = await mcpToken(server, {
  account: await createTestAccount(server),
  client: await createTestClient(server),
  scopes: ['read:posts', 'write:posts'],
});

const proxy = createServer((incoming, outgoing) => {
  const headers = { ...incoming.headers, authorization: `Bearer ${accessToken}` };
  const { method } = incoming;
  const onward = forward(`${server.baseUrl}/mcp`, { method, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
    answer.pipe(outgoing);
  });
  onward.on('error', () => outgoing.destroy());
  outgoing.on('close', () => onward.destroy());
  incoming.pipe(onward);
});
await new Promise<void>((resolve) => proxy.listen(proxyPort, '127.0.0.1', resolve));
after(() => {
  proxy.closeAllConnections();
  proxy.close();
});

/** Scenarios that pass. */
const passing: Readonly<Record<string, readonly string[]>> = {
  '2026-07-28': [
    'dns-rebinding-protection',
    'http-header-validation',
    'input-required-result-ignore-extra-params',
    'input-required-result-missing-input-response',
    'input-required-result-unsupported-methods',
    'input-required-result-validate-input',
    'sep-2164-resource-not-found',
    'server-sse-multiple-streams',
    'tasks-status-notifications',
    'tools-call-error',
    'tools-call-simple-text',
    'tools-list',
  ],
  '2025-11-25': [
    'dns-rebinding-protection',
    'ping',
    'server-initialize',
    'server-session-lifecycle',
    'server-sse-multiple-streams',
    'server-sse-polling',
    'tools-call-error',
    'tools-call-simple-text',
    'tools-list',
  ],
};

/** Checks that fail in scenarios about what this server has. */
const failing: Readonly<Record<string, string>> = {
  'sep-2549-prompts-list-caching-hints': 'there are no prompts',
  'sep-2549-resources-list-caching-hints': 'there are no resources',
  'sep-2549-resources-templates-list-caching-hints': 'there are no resources',
  'sep-2575-server-rejects-undeclared-capability': 'no tool needs a capability of the client',
  'sep-2575-missing-capability-http-400': 'no tool needs a capability of the client',
  'sep-2575-http-server-no-independent-requests-on-stream': 'no tool asks the user, so none streams',
  'sep-2575-server-no-log-without-loglevel': 'there is no logging, and so no tool that logs',
};

/** Scenarios that need what this server does not have. */
const absent: readonly [RegExp, string][] = [
  [
    /^(prompts|resources|completion|logging)-/,
    'there are no prompts, resources, completions and log messages',
  ],
  [/^tools-call-(image|audio|embedded|mixed)/, 'results of tools are JSON'],
  [
    /^tools-call-with-|^tools-call-(sampling|elicitation)$/,
    'tools ask the client nothing and report no progress',
  ],
  [/^elicitation-|^input-required-/, 'tools ask the user nothing'],
  [/^tasks-/, 'calls are no tasks'],
  [/^json-schema-2020-12$/, 'the suite looks for a tool of its own with certain keywords'],
  [/^http-custom-header-/, 'no argument is repeated in a header'],
];

for (const [version, expected] of Object.entries(passing)) {
  test(`agents 70, 71: the suite passes for ${version}, but for features that are not there`, async () => {
    const { output, checks } = await runServerConformance(proxyUrl, version);
    const scenarioOf = ({ scenario }: { scenario: string }) =>
      scenario.replace(/^server-/, '').replace(/-\d{4}-\d\d-\d\dT.*$/, '');
    const failed = checks.filter(({ status }) => status === 'FAILURE');
    const failedIn = new Set(failed.map(scenarioOf));
    const passed = [...new Set(checks.map(scenarioOf))].filter((name) => !failedIn.has(name));
    assert.deepEqual(passed.sort(), expected, output);
    const unexplained = failed.filter(
      (check) => failing[check.id] === undefined && !absent.some(([name]) => name.test(scenarioOf(check))),
    );
    assert.deepEqual(unexplained, []);
    // All that the server sent is valid by the schema of the protocol.
    const schema = checks.filter(({ id }) => id === 'wire-schema-valid');
    assert.ok(schema.length > 20);
    assert.deepEqual([...new Set(schema.map(({ status }) => status))], ['SUCCESS']);
  });
}
