/** Attack: `nuncio doctor connect` against a server that wants to keep it, fill it, send it elsewhere or deceive its reader. */

import assert from 'node:assert/strict';
import type { RequestListener } from 'node:http';
import { type TestContext, test } from 'node:test';
import { doctorConnect } from '../../src/commands/doctor_connect.ts';
import { loadConfig } from '../../src/config/config.ts';
import { startOtherServer } from '../support/network/other_server.ts';

async function startServer(t: TestContext, listener: RequestListener) {
  const requests: string[] = [];
  const url = await startOtherServer(t, (request, response) => {
    requests.push(String(request.url));
    listener(request, response);
  });
  return { url, requests };
}

/** What an operator sees. */
async function examine(url: string): Promise<{ code: unknown; output: string }> {
  const lines: string[] = [];
  const print = (line: string) => lines.push(line);
  const config = loadConfig({}, 'dev');
  const code = await doctorConnect.run(
    { values: { all: true }, positionals: [url] },
    { config, print, printError: print },
  );
  return { code, output: lines.join('\n') };
}

/** A server inside the operator's network, which nothing should reach. */
const startInternal = (t: TestContext) => startServer(t, (_request, response) => response.end('{}'));

test('attack: a body that never ends is read up to a limit, and the report says so', async (t) => {
  const { url, requests } = await startServer(t, (_request, response) => {
    const chunk = Buffer.alloc(65_536, ' ');
    const fill = () => {
      while (response.write(chunk));
    };
    response.on('drain', fill);
    fill();
  });
  const { code, output } = await examine(url);
  assert.equal(code, 2);
  assert.match(output, /the response has more than 1048576 bytes/);
  assert.equal(requests.length, 1);
});

test('attack: a body that comes byte by byte ends with the time of one request', async (t) => {
  const { url, requests } = await startServer(t, (_request, response) => {
    const timer = setInterval(() => response.write(' '), 100);
    response.on('close', () => clearInterval(timer));
  });
  const { code, output } = await examine(url);
  assert.equal(code, 2);
  assert.match(output, /oauth-authorization-server: no response in time/);
  assert.equal(requests.length, 1);
});

test('attack: redirects, also endless ones, are reported and not followed', async (t) => {
  const internal = await startInternal(t);
  const elsewhere = await startServer(t, (_request, response) => {
    response.writeHead(302, { location: `${internal.url}/admin` }).end();
  });
  const itself = await startServer(t, (request, response) => {
    response.writeHead(307, { location: `${request.url}x` }).end();
  });
  for (const { url, requests } of [elsewhere, itself]) {
    const { code, output } = await examine(url);
    assert.equal(code, 2);
    assert.match(output, /the server redirects \(30[27]\) to /);
    assert.ok(requests.length <= 20, String(requests.length));
    assert.ok(!requests.some((path) => path.includes('xx')));
  }
  assert.deepEqual(internal.requests, []);
});

test('attack: documents that name addresses inside send no request there, and no control character to the terminal', async (t) => {
  const internal = await startInternal(t);
  const evil = `\u001b[2J\u009b31m\u202e${'long '.repeat(10_000)}`;
  const { url, requests } = await startServer(t, (request, response) => {
    if (request.url?.startsWith('/.well-known/')) {
      const endpoints = {
        authorization_endpoint: internal.url,
        token_endpoint: evil,
        jwks_uri: internal.url,
      };
      return response.end(JSON.stringify({ issuer: evil, ...endpoints }));
    }
    response.writeHead(401, {
      'www-authenticate': `Bearer resource_metadata="${internal.url}/.well-known/oauth-protected-resource"`,
    });
    response.end(JSON.stringify({ error: evil, code: evil, error_description: { toString: 1 } }));
  });
  const { code, output } = await examine(url);
  assert.equal(code, 2);
  assert.ok(requests.length <= 20, String(requests.length));
  assert.deepEqual(internal.requests, []);
  assert.doesNotMatch(output, /[^\P{Cc}\n]|\u202e/u);
  assert.ok(output.split('\n').every((line) => line.length < 1_100));
});
