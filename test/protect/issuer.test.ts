/**
 * `nuncio/protect` when the issuer is away, slow, endless or false: no request is accepted, none waits long,
 * and checks recover by themselves. The issuer here is a test server; other tests use a real one.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { createProtector, type ProtectorOptions } from '../../src/protect/protect.ts';

const metadataPath = '/.well-known/oauth-authorization-server';

interface Issuer {
  url: string;
  /** The response of each path. A value is sent as JSON. */
  answers: Record<string, unknown>;
  /** The requested paths in order. */
  asked: string[];
  /** Returns a token that the issuer has signed. */
  token: (changes?: { kid?: string; jti?: string; sub?: string; privateKey?: CryptoKey }) => Promise<string>;
}

async function startIssuer(t: TestContext): Promise<Issuer> {
  const http = createServer((request, response) => {
    issuer.asked.push(request.url ?? '');
    const answer = issuer.answers[request.url ?? ''];
    if (typeof answer === 'function') answer(request, response);
    else if (answer === undefined) response.writeHead(404).end();
    else response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer));
  });
  http.listen(0, '127.0.0.1');
  await once(http, 'listening');
  t.after(() => {
    http.closeAllConnections();
    http.close();
  });
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwk = { ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' };
  const issuer: Issuer = {
    url,
    asked: [],
    answers: {
      [metadataPath]: {
        issuer: url,
        jwks_uri: `${url}/jwks`,
        token_endpoint: `${url}/token`,
        introspection_endpoint: `${url}/introspect`,
      },
      '/jwks': { keys: [jwk] },
      '/introspect': { active: true, token_type: 'Bearer' },
    },
    token: ({ kid = 'one', jti = 'a', sub = 'user', ...changes } = {}) =>
      new SignJWT({ client_id: 'app', scope: 'read:notes', jti })
        .setProtectedHeader({ alg: 'ES256', typ: 'at+jwt', kid })
        .setIssuer(url)
        .setAudience(url)
        .setSubject(sub)
        .setIssuedAt()
        .setExpirationTime('15m')
        .sign(changes.privateKey ?? privateKey),
  };
  return issuer;
}

function setUp(issuer: Issuer, options: Partial<ProtectorOptions> = { offline: true }) {
  const errors: string[] = [];
  const protect = createProtector({
    issuer: issuer.url,
    url: 'https://notes.example',
    audience: issuer.url,
    onError: (error) => errors.push(error.message),
    ...options,
  });
  const ask = async (token: string) => {
    const headers = { authorization: `Bearer ${token}` };
    const outcome = await protect.check({ method: 'GET', url: '/', headers });
    return outcome.granted ? 200 : outcome.status;
  };
  return { protect, ask, errors };
}

const online = { clientId: 'notes', clientSecret: 'secret' };

test('keys and metadata are fetched once for any number of requests', async (t) => {
  const issuer = await startIssuer(t);
  const { ask } = setUp(issuer);
  const tokens = await Promise.all(
    Array.from({ length: 50 }, (_, index) => issuer.token({ jti: String(index) })),
  );
  assert.deepEqual(new Set(await Promise.all(tokens.map(ask))), new Set([200]));
  assert.deepEqual(issuer.asked, [metadataPath, '/jwks']);
});

test('invented key ids cause no traffic', async (t) => {
  const issuer = await startIssuer(t);
  const { ask } = setUp(issuer);
  assert.equal(await ask(await issuer.token()), 200);
  for (let count = 0; count < 20; count += 1) {
    assert.equal(await ask(await issuer.token({ kid: `invented-${count}` })), 401);
  }
  assert.equal(issuer.asked.filter((path) => path === '/jwks').length, 1);
});

test('a token signed with another key is not introspected', async (t) => {
  const issuer = await startIssuer(t);
  const { ask } = setUp(issuer, online);
  const { privateKey } = await generateKeyPair('ES256');
  assert.equal(await ask(await issuer.token({ privateKey })), 401);
  assert.ok(!issuer.asked.includes('/introspect'));
});

const faults: Record<string, (issuer: Issuer) => void> = {
  'is somebody else': (issuer) => {
    const document = issuer.answers[metadataPath] as Record<string, unknown>;
    issuer.answers[metadataPath] = { ...document, issuer: `${issuer.url}/` };
  },
  'has its keys on another origin': (issuer) => {
    const document = issuer.answers[metadataPath] as Record<string, unknown>;
    issuer.answers[metadataPath] = { ...document, jwks_uri: 'https://evil.example/jwks' };
  },
  'sends its secrets elsewhere': (issuer) => {
    const document = issuer.answers[metadataPath] as Record<string, unknown>;
    issuer.answers[metadataPath] = { ...document, introspection_endpoint: 'https://evil.example/x' };
  },
  'has no metadata': (issuer) => {
    delete issuer.answers[metadataPath];
  },
  'answers with a page': (issuer) => {
    issuer.answers[metadataPath] = (_request: IncomingMessage, response: ServerResponse) =>
      response.writeHead(200).end('<html>');
  },
  'answers with an array': (issuer) => {
    issuer.answers[metadataPath] = [];
  },
  'redirects to good metadata': (issuer) => {
    issuer.answers['/elsewhere'] = issuer.answers[metadataPath];
    issuer.answers[metadataPath] = (_request: IncomingMessage, response: ServerResponse) =>
      response.writeHead(302, { location: '/elsewhere' }).end();
  },
  'has no keys': (issuer) => {
    issuer.answers['/jwks'] = {};
  },
  'sends keys without end': (issuer) => {
    issuer.answers['/jwks'] = (_request: IncomingMessage, response: ServerResponse) => {
      response.writeHead(200).write('{"keys":[');
      const send = () => {
        while (response.write(' '.repeat(65_536)));
        response.once('drain', send);
      };
      send();
    };
  },
  'closes the connection': (issuer) => {
    issuer.answers['/jwks'] = (request: IncomingMessage) => request.socket.destroy();
  },
};

/** The errors reported to `onError`. */
const reasons: Record<string, RegExp> = {
  'is somebody else': /the issuer in the metadata is/,
  'has its keys on another origin': /jwks_uri of the issuer is not a URL with its own origin/,
  'sends its secrets elsewhere': /introspection_endpoint of the issuer is not a URL with its own origin/,
  'has no metadata': /responded with status 404/,
  'answers with a page': /is not a JSON object/,
  'answers with an array': /is not a JSON object/,
  'redirects to good metadata': /responded with status 302/,
  'has no keys': /contains no keys/,
  'sends keys without end': /more than 262144 bytes/,
  'closes the connection': /no response from/,
};

for (const [name, spoil] of Object.entries(faults)) {
  test(`an issuer that ${name} causes 503 with Retry-After and a report, and 200 once it recovers`, async (t) => {
    const issuer = await startIssuer(t);
    const good = { ...issuer.answers };
    spoil(issuer);
    const { protect, ask, errors } = setUp(issuer);
    const headers = { authorization: `Bearer ${await issuer.token()}` };
    const outcome = await protect.check({ method: 'GET', url: '/', headers });
    assert.ok(!outcome.granted);
    assert.equal(outcome.status, 503);
    assert.equal(outcome.headers['retry-after'], '5');
    assert.equal(outcome.headers['www-authenticate'], undefined);
    assert.equal(errors.length, 1);
    assert.match(errors[0] ?? '', reasons[name] as RegExp);
    assert.ok(!outcome.body.includes(issuer.url), 'the reason is for the operator alone');
    issuer.answers = good;
    // A failure is cached for a second.
    while ((await ask(await issuer.token())) !== 200) await sleep(50);
  });
}

test('a silent issuer times out after some seconds', async (t) => {
  const issuer = await startIssuer(t);
  issuer.answers['/jwks'] = () => {};
  const { ask, errors } = setUp(issuer);
  assert.equal(await ask(await issuer.token()), 503);
  assert.match(errors[0] ?? '', /no response from .*\/jwks: .*timeout/);
});

test('offline checks continue with cached keys while the issuer is away, and online checks refuse', async (t) => {
  const issuer = await startIssuer(t);
  const { ask } = setUp(issuer);
  const asking = setUp(issuer, { ...online, cacheSeconds: 0 });
  assert.equal(await ask(await issuer.token()), 200);
  assert.equal(await asking.ask(await issuer.token()), 200);
  issuer.answers = {};
  assert.equal(await ask(await issuer.token({ jti: 'b' })), 200);
  assert.equal(await asking.ask(await issuer.token({ jti: 'b' })), 503);
  assert.match(asking.errors[0] ?? '', /\/introspect responded with status 404/);
});

test('a wrong client secret is 503 with a report, not a 401 for the app', async (t) => {
  const issuer = await startIssuer(t);
  issuer.answers['/introspect'] = (_request: IncomingMessage, response: ServerResponse) =>
    response.writeHead(401).end('{"error":"invalid_client"}');
  const { ask, errors } = setUp(issuer, online);
  assert.equal(await ask(await issuer.token()), 503);
  assert.match(errors[0] ?? '', /\/introspect responded with status 401/);
});

test('an introspection response without "active" is refused', async (t) => {
  const issuer = await startIssuer(t);
  for (const answer of [{}, { active: 'true', token_type: 'Bearer' }, { active: 1 }]) {
    issuer.answers['/introspect'] = answer;
    assert.equal(await setUp(issuer, online).ask(await issuer.token()), 503);
  }
});

test('an active token is accepted only as a live access token for this API', async (t) => {
  const issuer = await startIssuer(t);
  const now = Math.floor(Date.now() / 1_000);
  const good = {
    active: true,
    token_type: 'Bearer',
    client_id: 'app',
    sub: 'user',
    aud: issuer.url,
    exp: now + 60,
  };
  const asked = (changes: Record<string, unknown>) => {
    issuer.answers['/introspect'] = { ...good, ...changes };
    return setUp(issuer, online).ask('an-opaque-token');
  };
  assert.equal(await asked({}), 200);
  assert.equal(await asked({ iss: issuer.url }), 200);
  // A refresh token is active too, but has no `token_type`.
  assert.equal(await asked({ token_type: undefined }), 401);
  assert.equal(await asked({ token_type: 'mac' }), 401);
  assert.equal(await asked({ iss: 'https://evil.example' }), 401);
  assert.equal(await asked({ aud: 'https://other.example' }), 401);
  assert.equal(await asked({ aud: undefined }), 401);
  assert.equal(await asked({ exp: now - 60 }), 401);
  assert.equal(await asked({ exp: undefined }), 401);
  assert.equal(await asked({ client_id: undefined }), 401);
  assert.equal(await asked({ cnf: { jkt: 'abc' } }), 401);
});

/** Answers introspections only when told to. */
function holdIntrospections(issuer: Issuer): ServerResponse[] {
  const held: ServerResponse[] = [];
  issuer.answers['/introspect'] = (_request: IncomingMessage, response: ServerResponse) => {
    held.push(response);
  };
  return held;
}

test('at most 100 introspections are in flight, at most 50 of possibly unknown tokens', async (t) => {
  const issuer = await startIssuer(t);
  const { ask } = setUp(issuer, online);
  assert.equal(await ask(await issuer.token()), 200);
  const held = holdIntrospections(issuer);
  const opaque = Array.from({ length: 60 }, (_, index) => ask(`opaque-${index}`));
  assert.deepEqual(new Set(await Promise.all(opaque.slice(50))), new Set([503]));
  const tokens = await Promise.all(
    Array.from({ length: 60 }, (_, index) => issuer.token({ jti: `j${index}`, sub: `u${index}` })),
  );
  const signed = tokens.map(ask);
  while (held.length < 100) await sleep(10);
  for (const response of held.splice(0)) response.end('{"active":false}');
  assert.deepEqual(new Set(await Promise.all(opaque.slice(0, 50))), new Set([401]));
  const statuses = await Promise.all(signed);
  assert.equal(statuses.filter((status) => status === 401).length, 50);
  assert.equal(statuses.filter((status) => status === 503).length, 10);
});

for (const kind of ['signed', 'opaque']) {
  test(`attack: introspections of one account's ${kind} tokens keep out no other account`, async (t) => {
    const issuer = await startIssuer(t);
    const { ask } = setUp(issuer, { ...online, cacheSeconds: 0 });
    const tokens = await Promise.all(
      Array.from({ length: 120 }, (_, index) =>
        kind === 'signed' ? issuer.token({ jti: `j${index}` }) : `opaque-${index}`,
      ),
    );
    issuer.answers['/introspect'] = { active: true, token_type: 'Bearer', sub: 'user' };
    for (const token of tokens) await ask(token);
    const held = holdIntrospections(issuer);
    const flood = tokens.map(ask);
    const other = await issuer.token({ jti: 'other', sub: 'other' });
    const answer = ask(other);
    const isRefused = answer.then((status) => status === 503);
    while (held.length < 45 && !(await Promise.race([isRefused, sleep(10)])));
    issuer.answers['/introspect'] = { active: true, token_type: 'Bearer' };
    for (const response of held) response.end('{"active":true,"token_type":"Bearer"}');
    assert.equal(await answer, 200);
    assert.equal((await Promise.all(flood)).filter((status) => status === 503).length, 120 - 44);
  });
}

test('the default reports to the process once a minute at most', async (t) => {
  const issuer = await startIssuer(t);
  issuer.answers = {};
  const warnings: Error[] = [];
  const onWarning = (warning: Error) => warnings.push(warning);
  process.on('warning', onWarning);
  t.after(() => process.off('warning', onWarning));
  const protect = createProtector({
    issuer: issuer.url,
    url: 'https://notes.example',
    audience: issuer.url,
    offline: true,
  });
  const headers = { authorization: `Bearer ${await issuer.token()}` };
  for (let count = 0; count < 3; count += 1) await protect.check({ method: 'GET', url: '/', headers });
  await sleep(0);
  const ours = warnings.filter(({ name }) => name === 'NuncioProtectWarning');
  assert.equal(ours.length, 1);
  assert.match(ours[0]?.message ?? '', /oauth-authorization-server responded with status 404/);
});

test('attack: while the keys cannot be loaded, tokens with invented key ids cause few requests', async (t) => {
  const issuer = await startIssuer(t);
  issuer.answers['/jwks'] = (_request: IncomingMessage, response: ServerResponse) => {
    response.writeHead(503).end();
  };
  const protect = createProtector({
    issuer: issuer.url,
    url: 'https://notes.example',
    audience: 'https://notes.example',
    offline: true,
    onError() {},
  });
  const begunAt = performance.now();
  for (let count = 0; count < 300; count += 1) {
    const authorization = `Bearer ${await issuer.token({ kid: `invented ${count}` })}`;
    const outcome = await protect.check({ method: 'GET', url: '/notes', headers: { authorization } });
    assert.equal(!outcome.granted && outcome.status, 503);
  }
  const asked = issuer.asked.filter((path) => path === '/jwks').length;
  assert.ok(asked <= 2 + (performance.now() - begunAt) / 1_000, `${asked} requests`);
});
