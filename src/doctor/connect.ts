/**
 * Plays the clients that connect to a server, from outside and over HTTP alone: a browser app, a confidential web app, an MCP client and
 * a machine. Says which step fails and why. It sends invalid credentials on purpose, and changes nothing. The server may be hostile: it
 * decides neither how long a request takes, nor how much is read, nor where requests go.
 */

import { createHash, randomBytes } from 'node:crypto';
import { parseObject, readText } from '../shared/response_text.ts';
import { isGatewayError, networkFault, noNodeAdvice } from './network_fault.ts';
import { type Check, check, type Probe } from './report.ts';

/** Milliseconds for one request with its response. */
const timeoutMs = 10_000;
/** Largest response that is read, in bytes. */
const responseBytesMax = 1_048_576;
/** Seconds by which clocks may differ: proofs and assertions are refused from about one minute on. */
const clockSeconds = { warning: 5, error: 30 };
/** Seconds that a document may have been in a cache: its own `max-age`, and some more. */
const ageSecondsMax = 3_600;
/** Origin of the browser app. */
const appOrigin = 'https://nuncio-doctor.example';
/** An id that no server registers. */
const unknownClient = 'nuncio-doctor-unknown-client';

interface Reply {
  status: number;
  headers: Headers;
  /** The body as JSON; undefined if it is something else. */
  json: Record<string, unknown> | undefined;
}

/** What earlier steps found. */
interface Found {
  metadata?: Record<string, unknown>;
}

export type Fetch = (url: string, options: RequestInit) => Promise<Response>;

/** @param baseUrl the URL that clients know, without a slash at the end */
export function connectProbes(baseUrl: string, fetch: Fetch = globalThis.fetch): readonly Probe[] {
  const found: Found = {};
  const ask = asker(fetch);
  const probe = (name: string, run: () => Promise<Check | Check[]>): Probe => ({ name, run });
  return [
    probe('connect.metadata', () => checkMetadata(baseUrl, ask, found)),
    probe('connect.clock', () => checkClock(baseUrl, ask)),
    probe('browser.cors', () => checkCors(baseUrl, ask)),
    probe('browser.authorize', () => checkAuthorize(baseUrl, ask)),
    probe('web.authorization', () => checkAuthorization(baseUrl, ask)),
    probe('web.dpop', () => checkDpop(baseUrl, ask)),
    probe('mcp', () => checkMcp(baseUrl, ask, found)),
    probe('machine', () => checkMachine(baseUrl, ask, found)),
  ];
}

type Ask = (url: string, options?: RequestInit) => Promise<Reply>;

/** Requests go to URLs below the base URL only. Redirects are reported and not followed. */
function asker(fetch: Fetch): Ask {
  return async (url, options = {}) => {
    const signal = AbortSignal.timeout(timeoutMs);
    try {
      const response = await fetch(url, { redirect: 'manual', signal, ...options });
      const text = await readText(response, responseBytesMax);
      return { status: response.status, headers: response.headers, json: parseObject(text) };
    } catch (error) {
      throw new Error(`${new URL(url).pathname}: ${networkFault(error)}`, { cause: error });
    }
  };
}

/** RFC 8414 section 3.3: the issuer must be the URL that the document was asked from, to the letter. */
async function checkMetadata(baseUrl: string, ask: Ask, found: Found): Promise<Check[]> {
  const name = 'connect.metadata';
  const reply = await ask(`${baseUrl}/.well-known/oauth-authorization-server`);
  if (reply.status >= 300 && reply.status < 400) return [redirected(name, reply, baseUrl)];
  const { json } = reply;
  if (reply.status !== 200 || json === undefined) {
    if (isGatewayError(reply.status) && !reply.headers.has('nuncio-version')) {
      return [check(name, 'error', `the proxy reaches no node (status ${reply.status})`, noNodeAdvice)];
    }
    const what = `/.well-known/oauth-authorization-server responds ${reply.status}${json === undefined ? ' without JSON' : ''}; expected 200 with the metadata document`;
    return [
      check(name, 'error', what, 'Let the proxy forward every path, also /.well-known, to the server.'),
    ];
  }
  found.metadata = json;
  return [checkIssuer(baseUrl, json), checkEndpoints(baseUrl, json), checkCache(reply)];
}

function redirected(name: string, { status, headers }: Reply, baseUrl: string): Check {
  const target = headers.get('location') ?? 'nowhere';
  const what = `the server redirects (${status}) to ${target}; clients do not follow redirects of metadata and tokens`;
  const advice = `Give clients the final URL instead of ${baseUrl}, and set NUNCIO_BASE_URL to it.`;
  return check(name, 'error', what, advice);
}

function checkIssuer(baseUrl: string, { issuer }: Record<string, unknown>): Check {
  const name = 'connect.issuer';
  if (issuer === baseUrl) return check(name, 'ok', `the issuer is ${baseUrl}`);
  const isHttp = baseUrl.startsWith('https:') && String(issuer).startsWith('http:');
  const reason = isHttp ? ': the server does not know that it is behind https' : '';
  const what = `the metadata names the issuer ${String(issuer)}, but it was read from ${baseUrl}${reason}; clients refuse it`;
  return check(
    name,
    'error',
    what,
    `Set NUNCIO_BASE_URL=${baseUrl} on every node and restart, or use ${issuer}.`,
  );
}

function checkEndpoints(baseUrl: string, metadata: Record<string, unknown>): Check {
  const name = 'connect.endpoints';
  const needed = ['authorization_endpoint', 'token_endpoint', 'jwks_uri'];
  const wrong = needed.filter((member) => !String(metadata[member]).startsWith(`${baseUrl}/`));
  if (wrong.length === 0) return check(name, 'ok', 'the endpoints are below the base URL');
  const what = `${wrong.map((member) => `${member} is ${String(metadata[member])}`).join(', ')}; expected URLs below ${baseUrl}`;
  return check(name, 'error', what, `Set NUNCIO_BASE_URL=${baseUrl}.`);
}

function checkCache({ headers }: Reply): Check {
  const name = 'connect.cache';
  const age = Number(headers.get('age') ?? 0);
  const maxAge = Number(/max-age=(\d+)/.exec(headers.get('cache-control') ?? '')?.[1] ?? 0);
  if (age <= maxAge && maxAge <= ageSecondsMax) return check(name, 'ok', 'the metadata is fresh');
  const what = `the metadata is ${age} s old and may be kept for ${maxAge} s: a cache gives clients old documents`;
  const advice = 'Let the proxy or CDN respect Cache-Control of /.well-known, and purge its cache.';
  return check(name, 'warning', what, advice, { age_seconds: age, max_age_seconds: maxAge });
}

/** The header `Date` of a response that no cache stores. */
async function checkClock(baseUrl: string, ask: Ask): Promise<Check> {
  const name = 'connect.clock';
  const before = Date.now();
  const { headers } = await ask(`${baseUrl}/livez`);
  const middle = (before + Date.now()) / 2;
  const date = Date.parse(headers.get('date') ?? '');
  if (Number.isNaN(date)) return check(name, 'unknown', 'responses have no Date header');
  // `Date` has full seconds.
  const seconds = Math.round(Math.abs(date + 500 - middle) / 1_000);
  const values = { difference_seconds: seconds };
  if (seconds < clockSeconds.warning) return check(name, 'ok', 'the clocks agree', null, values);
  const what = `the clock of the server differs by ${seconds} s from this machine’s; proofs, assertions and tokens with times are refused`;
  const state = seconds < clockSeconds.error ? 'warning' : 'error';
  return check(name, state, what, 'Synchronize both clocks (NTP).', values);
}

/** A page of another origin reads the metadata and exchanges a code, with a preflight request for DPoP. */
async function checkCors(baseUrl: string, ask: Ask): Promise<Check[]> {
  const name = 'browser.cors';
  const origin = { origin: appOrigin };
  const read = await ask(`${baseUrl}/.well-known/oauth-authorization-server`, { headers: origin });
  const preflight = await ask(`${baseUrl}/oauth/token`, {
    method: 'OPTIONS',
    headers: {
      ...origin,
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization,dpop',
    },
  });
  const problems: string[] = [];
  if (!allowsOrigin(read)) problems.push('the metadata document');
  if (!allowsOrigin(preflight) || preflight.status >= 300) problems.push('the preflight of /oauth/token');
  if (problems.length === 0) return [check(name, 'ok', 'browsers may call the endpoints from other origins')];
  const what = `${problems.join(' and ')} got no usable Access-Control-Allow-Origin: browser apps cannot connect`;
  const advice =
    'Let the proxy pass OPTIONS requests and the Access-Control-* and Origin headers, and add none of its own.';
  return [check(name, 'error', what, advice)];
}

function allowsOrigin({ headers }: Reply): boolean {
  const allowed = headers.get('access-control-allow-origin');
  // Two headers, of the server and of the proxy, are joined by a comma and refused by browsers.
  return allowed === '*' || allowed === appOrigin;
}

/** The authorization request of an unknown app gets the error page of the server itself. */
async function checkAuthorize(baseUrl: string, ask: Ask): Promise<Check> {
  const name = 'browser.authorize';
  const verifier = randomBytes(32).toString('base64url');
  const query = new URLSearchParams({
    client_id: unknownClient,
    redirect_uri: `${appOrigin}/callback`,
    response_type: 'code',
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
    state: randomBytes(8).toString('hex'),
  });
  const { status, headers } = await ask(`${baseUrl}/oauth/authorize?${query}`);
  if (status === 400 && headers.has('request-id'))
    return check(name, 'ok', '/oauth/authorize shows the error page of an unknown app');
  const what = `/oauth/authorize responds ${status} to an unknown app; expected the server’s error page (400 with Request-Id)`;
  return check(
    name,
    'error',
    what,
    'Let the proxy forward /oauth/* with its query, without a login, redirect or error page of its own.',
  );
}

/** With an invalid secret in `Authorization`, the error must be about that secret. */
async function checkAuthorization(baseUrl: string, ask: Ask): Promise<Check> {
  const name = 'web.authorization';
  const basic = Buffer.from(`${unknownClient}:wrong`).toString('base64');
  const form = new URLSearchParams({ grant_type: 'authorization_code', code: 'none' });
  const headers = { authorization: `Basic ${basic}` };
  const reply = await ask(`${baseUrl}/oauth/token`, { method: 'POST', headers, body: form });
  const { status, json } = reply;
  const challenge = reply.headers.get('www-authenticate');
  // Without the header the server sees no client at all (400 invalid_request).
  if (status === 401 && json?.error === 'invalid_client') {
    return challenge === null
      ? stripped(name, 'WWW-Authenticate', 'of responses')
      : check(name, 'ok', 'client secrets arrive');
  }
  if (status === 400 && json?.error === 'invalid_request')
    return stripped(name, 'Authorization', 'of requests');
  const what = `/oauth/token responds ${status} (${String(json?.error ?? 'no OAuth error')}) to a wrong client secret; expected 401 invalid_client`;
  return check(name, 'error', what, 'Let the proxy forward POST /oauth/token unchanged.');
}

function stripped(name: string, header: string, where: string): Check {
  return check(
    name,
    'error',
    `the proxy removes the header ${header} ${where}`,
    `Let the proxy pass ${header} unchanged. nginx: do not set it with proxy_set_header, proxy_hide_header or auth_basic for this location.`,
  );
}

/** A malformed proof is refused as a proof. If the header is lost, the request is refused for another reason. */
async function checkDpop(baseUrl: string, ask: Ask): Promise<Check> {
  const name = 'web.dpop';
  const headers = { authorization: 'DPoP not-a-token', dpop: 'not-a-proof' };
  const withProof = await ask(`${baseUrl}/oauth/userinfo`, { headers });
  const { json } = withProof;
  if (json?.error === 'invalid_dpop_proof') return check(name, 'ok', 'DPoP proofs arrive');
  const description = String(json?.error_description ?? '');
  if (/DPoP.*header not provided/i.test(description)) return stripped(name, 'DPoP', 'of requests');
  if (/no access token/i.test(description)) return stripped(name, 'Authorization', 'of requests');
  return check(
    name,
    'unknown',
    `the response to an invalid DPoP proof (${withProof.status}) says nothing of it`,
  );
}

/** RFC 9728: the endpoint's 401 names its metadata, which names this server and the resource to ask for. */
async function checkMcp(baseUrl: string, ask: Ask, { metadata }: Found): Promise<Check> {
  const name = 'mcp';
  const url = `${baseUrl}/mcp`;
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' });
  const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
  const { status, headers: received } = await ask(url, { method: 'POST', headers, body });
  if (status === 404) return check(name, 'ok', 'the endpoint for agents is off');
  if (status !== 401) {
    const what = `/mcp responds ${status} without a token; expected 401`;
    return check(name, 'error', what, 'Let the proxy forward POST /mcp without a login page of its own.');
  }
  const challenge = received.get('www-authenticate');
  if (challenge === null) return stripped(name, 'WWW-Authenticate', 'of responses');
  const where = /resource_metadata="([^"]+)"/.exec(challenge)?.[1];
  if (where === undefined || !where.startsWith(`${baseUrl}/`)) {
    const what = `WWW-Authenticate of /mcp names the metadata ${where ?? 'nowhere'}; expected a URL below ${baseUrl}`;
    return check(name, 'error', what, `Set NUNCIO_BASE_URL=${baseUrl}.`);
  }
  const { status: read, json } = await ask(where);
  if (read !== 200 || json?.resource !== url) {
    const what = `the metadata of /mcp responds ${read} with the resource ${String(json?.resource)}; expected ${url}, which agents send as resource`;
    return check(name, 'error', what, `Forward /.well-known, and set NUNCIO_BASE_URL=${baseUrl}.`);
  }
  const servers = json.authorization_servers;
  if (!Array.isArray(servers) || !servers.includes(baseUrl)) {
    const what = `the metadata of /mcp names the authorization servers ${JSON.stringify(servers)}; expected ${baseUrl}`;
    return check(name, 'error', what, `Set NUNCIO_BASE_URL=${baseUrl}.`);
  }
  return canRegister(metadata)
    ? check(name, 'ok', `agents find the server and ask for resource=${url}`)
    : check(
        name,
        'warning',
        'agents cannot introduce themselves: neither client metadata documents nor registration are on',
        'Set oauth.clientMetadataDocuments or oauth.registration in nuncio.config.ts, or register each agent.',
      );
}

function canRegister(metadata: Record<string, unknown> | undefined): boolean {
  return (
    metadata?.client_id_metadata_document_supported === true || metadata?.registration_endpoint !== undefined
  );
}

/** A token request with an invalid secret in the body, and a call with an invalid token. */
async function checkMachine(baseUrl: string, ask: Ask, { metadata }: Found): Promise<Check[]> {
  const form = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: unknownClient,
    client_secret: 'wrong',
  });
  const token = await ask(`${baseUrl}/oauth/token`, { method: 'POST', body: form });
  const call = await ask(`${baseUrl}/subscriptions`, { headers: { authorization: 'Bearer not-a-token' } });
  const checks: Check[] = [];
  if (token.json?.error !== 'invalid_client') {
    const what = `/oauth/token responds ${token.status} (${String(token.json?.error ?? 'no OAuth error')}) to an unknown machine; expected invalid_client`;
    checks.push(
      check('machine.token', 'error', what, 'Let the proxy forward the bodies of POST requests unchanged.'),
    );
  }
  const code = String(call.json?.code ?? '');
  if (code === 'no-token') checks.push(stripped('machine.call', 'Authorization', 'of requests'));
  else if (call.status !== 401) {
    const what = `the API responds ${call.status} to an invalid token; expected 401`;
    checks.push(
      check('machine.call', 'error', what, 'Let the proxy forward the paths of the API unchanged.'),
    );
  } else if (!call.headers.has('www-authenticate')) {
    checks.push(stripped('machine.call', 'WWW-Authenticate', 'of responses'));
  }
  const grants = metadata?.grant_types_supported;
  if (Array.isArray(grants) && !grants.includes('client_credentials')) {
    checks.push(
      check('machine.grant', 'notice', 'the server has no grant type client_credentials for machines'),
    );
  }
  return checks.length > 0
    ? checks
    : [check('machine', 'ok', 'machines reach the token endpoint and the API')];
}
