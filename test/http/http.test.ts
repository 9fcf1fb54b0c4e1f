/** Rules for every request: strict JSON, statuses and problem details. */

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { after, test } from 'node:test';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const ada = await createApiUser(server);
const { body } = await ada.request('POST', '/articles', { json: { title: 'A title' } });
const path = `/articles/${body.id}`;

const json = { 'content-type': 'application/json' };
const bytes = (text: string) => Uint8Array.from(Buffer.from(text, 'latin1'));

const strict: [name: string, raw: string | Uint8Array<ArrayBuffer>, status: number, pointer?: string][] = [
  ['no JSON', '{', 400],
  ['no body', '', 400],
  ['a NUL in text', '{"title":"a\\u0000b"}', 422, '/title'],
  ['half a surrogate pair', '{"title":"a\\ud800b"}', 422, '/title'],
  ['half a surrogate pair in a name', '{"title":"a","\\udc00":1}', 422, ''],
  ['bytes that are not UTF-8', bytes('{"title":"\xff"}'), 400],
  ['a byte order mark', bytes('\xef\xbb\xbf{"title":"x"}'), 400],
  ['a name twice', '{"title":"a","title":"b"}', 400],
  ['a name twice, written differently', '{"title":"a","\\u0074itle":"b"}', 400],
  ['__proto__', '{"title":"a","__proto__":{"state":"published"}}', 422],
  ['__proto__, escaped', '{"title":"a","\\u005f_proto__":{}}', 422],
  ['constructor', '{"title":"a","constructor":{"prototype":{}}}', 422, '/constructor'],
  ['nesting of 100,000', `${'['.repeat(100_000)}${']'.repeat(100_000)}`, 422],
  ['nesting of 400', `{"title":${'{"a":'.repeat(400)}1${'}'.repeat(400)}}`, 422],
  ['a number out of range', '{"title":1e999}', 422, '/title'],
  ['a very long number', `{"title":${'9'.repeat(400)}}`, 422, '/title'],
  ['an array', '[]', 422],
  ['null', 'null', 422],
  ['a text', '"title"', 422],
  ['an unknown member', '{"title":"a","x~/y":1}', 422, '/x~0~1y'],
  ['a member that the server sets', '{"title":"a","state":"published"}', 422, '/state'],
  ['a wrong type', '{"title":["a"]}', 422, '/title'],
  ['a missing member', '{}', 422, '/title'],
];

for (const [name, raw, expected, pointer] of strict) {
  test(`a body with ${name} is ${expected}`, async () => {
    const { status, headers, body } = await ada.request('POST', '/articles', { raw, headers: json });
    assert.equal(status, expected, JSON.stringify(body));
    assert.equal(headers.get('content-type'), 'application/problem+json');
    assert.equal(body.status, expected);
    if (pointer !== undefined)
      assert.ok(body.errors.some((error: { pointer: string }) => error.pointer === pointer));
  });
}

test('equal names in different objects, escapes and depth within the limit are accepted', async () => {
  const raw = '{"title":"a \\"quoted\\" \\\\ \\ud83d\\ude00 {[,:]} e1 1e999","body":"\\\\"}';
  const { status, body } = await ada.request('POST', '/articles', { raw, headers: json });
  assert.equal(status, 201);
  assert.equal(body.title, 'a "quoted" \\ 😀 {[,:]} e1 1e999');
  assert.equal(body.body, '\\');
});

test('a body past 1 MiB is 413', async () => {
  const raw = JSON.stringify({ title: 'x', body: 'x'.repeat(1_100_000) });
  const { status, body } = await ada.request('POST', '/articles', { raw, headers: json });
  assert.equal(status, 413);
  assert.equal(body.code, 'body-too-large');
});

test('a body that is not JSON is 415 with the accepted types', async () => {
  for (const headers of [
    { 'content-type': 'text/plain' },
    { 'content-type': 'application/x-www-form-urlencoded' },
    { 'content-type': 'application/json; charset=latin1' },
    { 'content-type': 'application/merge-patch+json' },
    { 'content-type': 'application/json', 'content-encoding': 'gzip' },
    { 'content-type': 'nonsense' },
  ]) {
    const answer = await ada.request('POST', '/articles', { raw: '{"title":"x"}', headers });
    assert.equal(answer.status, 415, JSON.stringify(headers));
  }
  const patch = await ada.request('PATCH', path, { raw: 'x', headers: { 'content-type': 'text/plain' } });
  assert.equal(patch.status, 415);
  assert.match(patch.headers.get('accept-patch') ?? '', /application\/merge-patch\+json/);
  const utf8 = { 'content-type': 'Application/JSON; charset="UTF-8"' };
  assert.equal((await ada.request('POST', '/articles', { raw: '{"title":"x"}', headers: utf8 })).status, 201);
});

test('a request that does not accept JSON is 406', async () => {
  for (const [accept, expected] of [
    ['text/html', 406],
    ['application/json;q=0, */*', 406],
    ['application/xml, text/*;q=0.5', 406],
    ['application/*', 200],
    ['text/html, */*;q=0.1', 200],
    ['*/*;q=0, application/json', 200],
    ['', 200],
  ] as const) {
    assert.equal((await ada.request('GET', path, { headers: { accept } })).status, expected, accept);
  }
});

test('405 and OPTIONS name the allowed methods', async () => {
  const wrong = await ada.request('POST', path);
  assert.equal(wrong.status, 405);
  assert.equal(wrong.headers.get('allow'), 'GET, HEAD, PUT, PATCH, DELETE, OPTIONS');
  assert.equal((await ada.request('DELETE', '/articles')).status, 405);
  assert.equal((await ada.request('GET', `${path}/publish`)).status, 405);
  const options = await requester(server)('OPTIONS', path);
  assert.equal(options.status, 204);
  assert.equal(options.headers.get('allow'), 'DELETE, GET, HEAD, OPTIONS, PATCH, PUT');
});

test('a disallowed method is 405 before the body is read', async () => {
  for (const [method, headers, raw] of [
    ['QUERY', {}, undefined],
    ['QUERY', { 'content-type': 'text/plain' }, 'x'],
    ['POST', json, '{'],
    ['PROPFIND', {}, undefined],
  ] as const) {
    const answer = await ada.request(method, '/api', { headers, ...(raw === undefined ? {} : { raw }) });
    assert.equal(answer.status, 405, method);
    assert.equal(answer.headers.get('allow'), 'GET, HEAD, OPTIONS');
    assert.equal((await ada.request(method, '/nothing', { headers })).status, 404, method);
  }
});

test('an overlong id is 404', async () => {
  assert.equal((await ada.request('GET', `/articles/${'0'.repeat(3_000)}`)).status, 404);
});

test('an unknown method is 501, and invalid HTTP stays 400', async () => {
  for (const [text, status] of [
    ['BREW /api HTTP/1.1\r\nHost: x\r\n\r\n', 501],
    ['get /api HTTP/1.1\r\nHost: x\r\n\r\n', 501],
    ['CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n', 501],
    ['BREW /api\r\n\r\n', 400],
    ['{"a":1}\r\n\r\n', 400],
    ['\x16\x03\x01\x02\x00\x01\x00\x01', 400],
  ] as const) {
    const answer = await exchange(text);
    assert.ok(answer.startsWith(`HTTP/1.1 ${status} `), `${text}: ${answer}`);
    assert.match(answer, /\r\nConnection: close\r\n/);
    assert.equal(JSON.parse(answer.split('\r\n\r\n')[1] ?? '').status, status);
  }
});

/** Sends bytes and reads until the server closes the connection. */
async function exchange(text: string): Promise<string> {
  const { hostname, port } = new URL(server.baseUrl);
  const socket = connect(Number(port), hostname);
  socket.setEncoding('latin1').write(text, 'latin1');
  let answer = '';
  for await (const chunk of socket) answer += chunk;
  return answer;
}

test('a page of another origin may send a preflight and read the response', async () => {
  const preflight = await requester(server)('OPTIONS', path, {
    headers: {
      origin: 'https://app.example',
      'access-control-request-method': 'PATCH',
      'access-control-request-headers': 'authorization, if-match',
    },
  });
  assert.equal(preflight.status, 204);
  assert.equal(preflight.headers.get('access-control-allow-origin'), '*');
  assert.match(preflight.headers.get('access-control-allow-methods') ?? '', /PATCH/);
  assert.match(preflight.headers.get('access-control-allow-headers') ?? '', /Authorization.*If-Match/);
  const answer = await ada.request('GET', path, { headers: { origin: 'https://app.example' } });
  assert.equal(answer.headers.get('access-control-allow-origin'), '*');
  assert.equal(answer.headers.get('access-control-allow-credentials'), null);
  const refused = await requester(server)('GET', path, { headers: { origin: 'https://app.example' } });
  assert.equal(refused.headers.get('access-control-allow-origin'), '*');
});

test('HEAD returns GET’s headers without a body', async () => {
  const get = await ada.request('GET', path);
  const head = await ada.request('HEAD', path);
  assert.equal(head.status, 200);
  assert.equal(head.text, '');
  for (const name of ['content-type', 'content-length', 'etag', 'last-modified', 'cache-control', 'vary']) {
    assert.equal(head.headers.get(name), get.headers.get(name), name);
  }
  assert.equal((await ada.request('HEAD', '/articles/none')).status, 404);
});

test('a response that depends on a token is private', async () => {
  const { headers } = await ada.request('GET', path);
  assert.match(headers.get('cache-control') ?? '', /private/);
  assert.match(headers.get('vary') ?? '', /Authorization/);
  assert.match(headers.get('nuncio-version') ?? '', /^\d+\.\d+\.\d+/);
  assert.equal((await ada.request('GET', '/articles/none')).headers.get('cache-control'), 'no-store');
});

test('a problem names its type and the request id', async () => {
  const { status, headers, body } = await ada.request('GET', '/articles/none');
  assert.equal(status, 404);
  assert.equal(headers.get('content-type'), 'application/problem+json');
  assert.deepEqual(Object.keys(body), ['type', 'title', 'status', 'detail', 'instance', 'code']);
  assert.equal(body.instance, `urn:uuid:${headers.get('request-id')}`);
});

test('an unreadable URL or request is a problem document', async () => {
  const { status, headers } = await ada.request('GET', '/articles/%zz');
  assert.equal(status, 400);
  assert.equal(headers.get('content-type'), 'application/problem+json');
  const answer = await speak('GET /articles HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n');
  assert.match(answer, /^HTTP\/1\.1 400 /);
  assert.match(answer, /application\/problem\+json/);
});

test('a request without exactly one valid Host is 400, at every kind of route', async () => {
  const cases: [string, number][] = [
    ['Host: x\r\nHost: x', 400],
    ['Host: x\r\nhOST: y', 400],
    ['Host: x\r\nHost:', 400],
    ['Accept: */*', 400],
    ['Host: x, y', 400],
    ['Host: x/y', 400],
    ['Host: user@x', 400],
    ['Host: x:80:80', 400],
    ['Host: x:y', 400],
    ['Host: [::1', 400],
    ['Host: ::1', 400],
    ['Host: x y', 400],
    ['Host: x%zz', 400],
    ['Host: \x80', 400],
    ['Host:', 200],
    ['Host: x_y.example:', 200],
    ['Host: 127.0.0.1:3000', 200],
    ['Host: [::1]:3000', 200],
    ['Host:  EXAMPLE.com.\t', 200],
  ];
  for (const [lines, expected] of cases) {
    const answer = await exchange(`GET /livez HTTP/1.1\r\n${lines}\r\nConnection: close\r\n\r\n`);
    assert.ok(answer.startsWith(`HTTP/1.1 ${expected} `), `${lines}: ${answer}`);
    if (expected === 400) assert.match(answer, /"code":"invalid-host"/);
  }
  for (const line of [
    'GET /none',
    'GET http://x/livez',
    'POST /oauth/token',
    'GET /console',
    'OPTIONS /api',
  ]) {
    const answer = await exchange(`${line} HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n`);
    assert.match(answer, /^HTTP\/1\.1 400 /, line);
    assert.match(answer, /\r\nConnection: close\r\n/i, line);
  }
  assert.match(await exchange('GET /livez HTTP/1.0\r\n\r\n'), /^HTTP\/1\.1 200 /);
});

async function speak(text: string): Promise<string> {
  const { hostname, port } = new URL(server.running.address);
  const socket = connect(Number(port), hostname);
  socket.end(text);
  return (await Array.fromAsync(socket)).join('');
}
