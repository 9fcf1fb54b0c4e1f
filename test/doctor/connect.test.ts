/** `nuncio doctor connect` against a real server, directly and behind proxies that are broken in one way each. */

import assert from 'node:assert/strict';
import { createServer, type IncomingHttpHeaders, request, type ServerResponse } from 'node:http';
import { after, type TestContext, test } from 'node:test';
import { doctorConnect } from '../../src/commands/doctor_connect.ts';
import { connectProbes } from '../../src/doctor/connect.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';

const proxyPort = await freePort();
const baseUrl = `http://localhost:${proxyPort}`;
const server = await startTestServer({ after }, { NUNCIO_BASE_URL: baseUrl });
const target = new URL(server.running.address);

/** A fault of a proxy. */
interface Fault {
  onRequest?: (headers: IncomingHttpHeaders) => void;
  onResponse?: (headers: IncomingHttpHeaders) => void;
  rewrite?: (path: string, body: string) => string;
  /** Answers by itself. @returns whether it did */
  answer?: (path: string, method: string, response: ServerResponse) => boolean;
}

/** Forwards requests to the server with a fault, and runs the doctor. */
async function examine(context: TestContext, fault: Fault, url = baseUrl) {
  const proxy = createServer((incoming, outgoing) => {
    const { url: path = '/', method = 'GET' } = incoming;
    if (fault.answer?.(path, method, outgoing) === true) return;
    const headers = { ...incoming.headers };
    fault.onRequest?.(headers);
    const options = { hostname: target.hostname, port: target.port, path, method, headers };
    const forwarded = request(options, async (response) => {
      const chunks: Buffer[] = [];
      for await (const chunk of response) chunks.push(chunk);
      const body = Buffer.concat(chunks).toString();
      const received = { ...response.headers };
      delete received['content-length'];
      delete received['transfer-encoding'];
      fault.onResponse?.(received);
      outgoing.writeHead(response.statusCode ?? 500, received).end(fault.rewrite?.(path, body) ?? body);
    });
    incoming.pipe(forwarded);
  });
  await new Promise<void>((resolve) => proxy.listen(proxyPort, 'localhost', resolve));
  context.after(
    () =>
      new Promise((resolve) => {
        proxy.close(resolve);
        proxy.closeAllConnections();
      }),
  );
  const lines: string[] = [];
  const print = (line: string) => lines.push(line);
  const input = { values: { json: true }, positionals: [url] };
  const code = await doctorConnect.run(input, { config: server.config, print, printError: print });
  const { checks } = JSON.parse(lines.join('\n')) as {
    checks: { name: string; state: string; summary: string; advice: string | null }[];
  };
  return { code, checks, wrong: checks.filter(({ state }) => state === 'error' || state === 'warning') };
}

test('doctor connect finds nothing wrong behind a proxy that forwards everything', async (context) => {
  const { code, checks, wrong } = await examine(context, {});
  assert.deepEqual(wrong, []);
  assert.equal(code, 0);
  for (const name of ['connect.issuer', 'browser.cors', 'web.authorization', 'web.dpop', 'mcp', 'machine']) {
    assert.equal(checks.find((each) => each.name === name)?.state, 'ok', name);
  }
});

for (const [header, name] of [
  ['authorization', 'web.authorization'],
  ['dpop', 'web.dpop'],
] as const) {
  test(`doctor connect says that the proxy removes the request header ${header}`, async (context) => {
    const { code, wrong } = await examine(context, { onRequest: (headers) => delete headers[header] });
    const found = wrong.find((each) => each.name === name);
    assert.match(found?.summary ?? '', new RegExp(`removes the header ${header} of requests`, 'i'));
    assert.equal(code, 2);
  });
}

test('doctor connect says that the proxy removes WWW-Authenticate', async (context) => {
  const { wrong } = await examine(context, { onResponse: (headers) => delete headers['www-authenticate'] });
  const names = wrong.filter(({ summary }) => /removes the header WWW-Authenticate/.test(summary));
  assert.deepEqual(
    names.map(({ name }) => name),
    ['web.authorization', 'mcp', 'machine.call'],
  );
});

test('doctor connect says that the server does not know its https or its name', async (context) => {
  const other = `http://127.0.0.1:${proxyPort}`;
  const rewrite = (_path: string, body: string) => body.replaceAll(baseUrl, 'http://internal.example:3000');
  const { code, wrong } = await examine(context, { rewrite });
  assert.equal(code, 2);
  const issuer = wrong.find(({ name }) => name === 'connect.issuer');
  assert.match(
    issuer?.summary ?? '',
    /names the issuer http:\/\/internal\.example:3000, but it was read from/,
  );
  assert.match(issuer?.advice ?? '', new RegExp(`NUNCIO_BASE_URL=${baseUrl}`));
  assert.ok(!wrong.some(({ summary }) => summary.includes(other)));
});

test('doctor connect finds cached metadata and a wrong clock', async (context) => {
  const { wrong } = await examine(context, {
    onResponse: (headers) => {
      headers.age = '90000';
      headers.date = new Date(Date.now() - 600_000).toUTCString();
    },
  });
  assert.match(wrong.find(({ name }) => name === 'connect.cache')?.summary ?? '', /90000 s old/);
  const clock = wrong.find(({ name }) => name === 'connect.clock');
  assert.match(clock?.summary ?? '', /differs by (?:59\d|60\d) s/);
  assert.equal(clock?.state, 'error');
});

test('doctor connect finds CORS that the proxy doubles, and preflights that it answers', async (context) => {
  const doubled = (headers: IncomingHttpHeaders) => {
    const name = 'access-control-allow-origin';
    if (headers[name] !== undefined) headers[name] = `${headers[name]}, *`;
  };
  const { wrong } = await examine(context, { onResponse: doubled });
  assert.match(
    wrong.find(({ name }) => name === 'browser.cors')?.summary ?? '',
    /metadata document and the pre/,
  );
});

test('doctor connect finds a login page before the paths, and metadata that is redirected', async (context) => {
  const answer: Fault['answer'] = (path, _method, response) => {
    if (path.startsWith('/.well-known/')) return false;
    response.writeHead(302, { location: 'https://login.example/' }).end();
    return true;
  };
  const { wrong } = await examine(context, { answer });
  for (const name of ['browser.authorize', 'web.authorization', 'mcp', 'machine.token', 'machine.call']) {
    assert.ok(
      wrong.some((each) => each.name === name),
      name,
    );
  }
});

test('doctor connect says that the server does not know that it is behind https', async () => {
  const outside = 'https://id.example';
  // The proxy that ends TLS, without a certificate for this test.
  const throughProxy = (url: string, options: RequestInit) =>
    fetch(url.replace(outside, server.running.address), options);
  const [metadata] = connectProbes(outside, throughProxy);
  const checks = [await metadata?.run()].flat();
  const issuer = checks.find((each) => each?.name === 'connect.issuer');
  assert.match(
    issuer?.summary ?? '',
    /: the server does not know that it is behind https; clients refuse it/,
  );
  assert.match(issuer?.advice ?? '', /NUNCIO_BASE_URL=https:\/\/id\.example on every node/);
  const endpoints = checks.find((each) => each?.name === 'connect.endpoints');
  assert.match(
    endpoints?.summary ?? '',
    /token_endpoint is http:.* expected URLs below https:\/\/id\.example/,
  );
});

const mcpMetadata = '/.well-known/oauth-protected-resource/mcp';
const faultsOfMcp: readonly (readonly [what: string, fault: Fault, expected: RegExp])[] = [
  [
    'the metadata names another resource than agents ask for',
    {
      rewrite: (path, body) =>
        path === mcpMetadata ? body.replace(`${baseUrl}/mcp"`, `${baseUrl}/"`) : body,
    },
    /with the resource http\S+\/; expected http\S+\/mcp, which agents send as resource/,
  ],
  [
    'the metadata names another authorization server',
    {
      rewrite: (path, body) =>
        path === mcpMetadata ? body.replace(`["${baseUrl}"]`, '["https://other.example"]') : body,
    },
    /names the authorization servers \["https:\/\/other\.example"\]; expected/,
  ],
  [
    'the challenge names metadata elsewhere',
    {
      onResponse: (headers) => {
        const name = 'www-authenticate';
        const challenge = headers[name];
        if (challenge !== undefined) headers[name] = challenge.replaceAll(baseUrl, 'http://internal.example');
      },
    },
    /WWW-Authenticate of \/mcp names the metadata http:\/\/internal\.example/,
  ],
  [
    'agents cannot introduce themselves',
    {
      rewrite: (_path, body) =>
        body
          .replace(
            '"client_id_metadata_document_supported":true',
            '"client_id_metadata_document_supported":false',
          )
          .replace('"registration_endpoint"', '"x"'),
    },
    /agents cannot introduce themselves/,
  ],
];

for (const [what, fault, expected] of faultsOfMcp) {
  test(`doctor connect finds that ${what}`, async (context) => {
    const { wrong } = await examine(context, fault);
    assert.match(wrong.find(({ name }) => name === 'mcp')?.summary ?? '', expected);
  });
}

test('doctor connect finds nothing wrong with a server without an endpoint for agents', async (context) => {
  const { code, checks } = await examine(context, {
    answer: (path, _method, response) => {
      if (path !== '/mcp') return false;
      response.writeHead(404).end();
      return true;
    },
  });
  const mcp = checks.find(({ name }) => name === 'mcp');
  assert.deepEqual([code, mcp?.state, mcp?.summary], [0, 'ok', 'the endpoint for agents is off']);
});

test('doctor connect stops after metadata that cannot be read', async (context) => {
  const answer: Fault['answer'] = (_path, _method, response) => {
    response.writeHead(301, { location: 'https://www.example/' }).end();
    return true;
  };
  const { code, checks } = await examine(context, { answer });
  assert.equal(code, 2);
  assert.deepEqual(
    checks.map(({ name }) => name),
    ['connect.metadata'],
  );
  assert.match(checks[0]?.summary ?? '', /redirects \(301\) to https:\/\/www\.example\//);
  const other = await runWithout(`http://localhost:${await freePort()}`);
  assert.match(other, /nothing listens at this address/);
});

test('doctor connect says that the proxy reaches no node', async (context) => {
  const answer: Fault['answer'] = (_path, _method, response) => {
    response.writeHead(502).end('<h1>Bad Gateway</h1>');
    return true;
  };
  const { code, wrong } = await examine(context, { answer });
  assert.equal(code, 2);
  assert.deepEqual(
    wrong.map(({ summary }) => summary),
    ['the proxy reaches no node (status 502)'],
  );
  assert.match(wrong[0]?.advice ?? '', /^Start a node/);
});

async function runWithout(url: string): Promise<string> {
  const lines: string[] = [];
  const print = (line: string) => lines.push(line);
  const input = { values: {}, positionals: [url] };
  await doctorConnect.run(input, { config: server.config, print, printError: print });
  return lines.join('\n');
}
