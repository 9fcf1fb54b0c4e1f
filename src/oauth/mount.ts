/**
 * The engine's routes on our application: which path takes which method, and what a request looks like when the
 * engine gets it. Host and protocol are the base URL's, whatever the client or a proxy sent; the body is not read
 * before the engine reads it.
 */

import { parse, stringify } from 'node:querystring';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { readBody } from '../http/body_limit.ts';
import { mediaType } from '../http/media_types.ts';
import { Problem } from '../http/problem.ts';
import { noteBody } from './endpoint_limit.ts';
import type { EnginePages } from './engine_options.ts';
import { registrationPath } from './registration/registration.ts';
import type { RefuseTooMany } from './request_limit.ts';
import type { OAuthSettings } from './settings.ts';
import { toOpaqueForm } from './storage/access_token.ts';

type Route = [path: string, ...methods: ('GET' | 'POST' | 'PUT' | 'DELETE')[]];

/** The engine's paths and what each takes besides OPTIONS. */
const routes: readonly Route[] = [
  ['/oauth/authorize', 'GET'],
  ['/oauth/authorize/:uid', 'GET'],
  ['/oauth/token', 'POST'],
  ['/oauth/jwks', 'GET'],
  ['/oauth/revoke', 'POST'],
  ['/oauth/introspect', 'POST'],
  ['/oauth/userinfo', 'GET', 'POST'],
  ['/oauth/par', 'POST'],
  ['/oauth/device', 'POST'],
  ['/device', 'GET', 'POST'],
  ['/device/:uid', 'GET'],
  ['/oauth/logout', 'GET'],
  ['/oauth/logout/confirm', 'POST'],
  ['/oauth/logout/success', 'GET'],
  ['/.well-known/oauth-authorization-server', 'GET'],
  ['/.well-known/openid-configuration', 'GET'],
];

const registrationRoutes: readonly Route[] = [
  [registrationPath, 'POST'],
  [`${registrationPath}/:clientId`, 'GET', 'PUT', 'DELETE'],
];

/** What is for browsers to visit, with their cookies: no page of another origin reads it. */
const pagePaths = /^\/(?:oauth\/authorize|oauth\/logout|device)(?:\/|$)/;

/** Where the engine takes no JWT as the `token` parameter, and we do. */
const structuredTokenPaths = new Set(['/oauth/revoke', '/oauth/introspect']);

/** For whatever the engine shows or redirects (RFC 9700 sections 4.2.4 and 4.16); it adds its own script's hash. */
const pageHeaders: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'none'; script-src; style-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
};

/** The largest body taken, in bytes: the engine's own limit. */
const bodyBytesMax = 56 * 1_024;

/** @param provider gives the engine of the moment: after a rotation of keys it is another one */
export function mountProvider(
  app: FastifyInstance,
  baseUrl: string,
  provider: () => Provider,
  settings: OAuthSettings,
  refuseTooMany: RefuseTooMany,
  pages: EnginePages,
): void {
  const normalize = requestNormalizer(baseUrl);
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, _payload, done) => done(null));
    const enabled = settings.registration === 'off' ? routes : [...routes, ...registrationRoutes];
    for (const [path, ...methods] of enabled) {
      const isPage = pagePaths.test(path);
      const replaces = structuredTokenPaths.has(path);
      // Handed over before the framework would look for a body: what comes after the first hooks is not for us.
      const onRequest = async (request: FastifyRequest, reply: FastifyReply) => {
        if (isPage) reply.headers({ ...pageHeaders });
        if (refuseTooMany(request, reply, path)) return;
        try {
          await readWithinLimit(request, replaces);
        } catch (error) {
          if (!(error instanceof Problem)) throw error;
          return refuse(error, request, reply, isPage ? pages : null);
        }
        await hand(request, reply);
      };
      for (const method of methods) scope.route({ method, url: path, onRequest, handler: neverReached });
      scope.options(path, async (request, reply) => {
        const isPreflight = request.headers['access-control-request-method'] !== undefined;
        if (isPreflight && !isPage) return hand(request, reply);
        return reply
          .code(204)
          .header('allow', [...methods, 'OPTIONS'].join(', '))
          .send();
      });
    }
  });

  async function hand(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    const { raw } = request;
    normalize(request);
    reply.hijack();
    const headers = reply.getHeaders();
    for (const name in headers) setHeader(reply, name, headers[name]);
    await callbackOf(provider())(raw, reply.raw);
  }
}

function setHeader(reply: FastifyReply, name: string, value: number | string | string[] | undefined): void {
  if (value !== undefined) reply.raw.setHeader(name, value);
}

function neverReached(): void {
  throw new Error('the engine answers before');
}

/**
 * Host and protocol as the base URL says, whatever the client or a proxy sent.
 * @returns a function that puts a request right
 */
export function requestNormalizer(baseUrl: string): (request: FastifyRequest) => void {
  const { host, protocol } = new URL(baseUrl);
  return (request) => {
    // Whom a trusted proxy saw: read before what it says is taken out.
    const { ip } = request;
    const { headers } = request.raw;
    for (const name in headers) {
      if (name === 'forwarded' || name.startsWith('x-forwarded-')) delete headers[name];
      // A method of authentication that nobody has here: by these the engine would refuse a request as one of a client
      // that has not authenticated, and it would count for that client (endpoint_limit.ts).
      if (name.startsWith('oauth-client-attestation')) delete headers[name];
    }
    headers.host = host;
    headers['x-forwarded-proto'] = protocol.slice(0, -1);
    headers['x-forwarded-for'] = ip;
  };
}

type Callback = ReturnType<Provider['callback']>;
const callbacks = new WeakMap<Provider, Callback>();

/** The engine composes its middleware anew whenever it is asked for its callback. */
function callbackOf(provider: Provider): Callback {
  let callback = callbacks.get(provider);
  if (callback === undefined) {
    callback = provider.callback();
    callbacks.set(provider, callback);
  }
  return callback;
}

/**
 * Reads the body within the limit, and gives the request what was read in its place.
 * @param replaces whether a JWT as the `token` of a form is replaced by what the engine does not know as one
 * @throws Problem 413 past the limit
 */
async function readWithinLimit(request: FastifyRequest, replaces: boolean): Promise<void> {
  const { raw } = request;
  const { headers } = raw;
  if (headers['content-length'] === undefined && headers['transfer-encoding'] === undefined) return;
  const read = await readBody(request, bodyBytesMax);
  noteBody(raw, read);
  const isForm = mediaType(headers['content-type']) === 'application/x-www-form-urlencoded';
  const body = replaces && isForm ? withOpaqueToken(read) : read;
  headers['content-length'] = String(body.length);
  Object.defineProperties(raw, {
    readable: { value: true },
    iterator: {
      value: async function* () {
        yield body;
      },
    },
  });
}

function withOpaqueToken(body: Buffer): Buffer {
  const form = parse(body.toString());
  if (typeof form.token !== 'string') return body;
  return Buffer.from(stringify({ ...form, token: toOpaqueForm(form.token) }));
}

/** What is refused before the engine sees it: a page for browsers, otherwise the engine's own shape. */
function refuse(
  problem: Problem,
  request: FastifyRequest,
  reply: FastifyReply,
  page: EnginePages | null,
): void {
  const error = { error: 'invalid_request', error_description: refusalDescription(problem) };
  reply.code(problem.status).headers(problem.headers).header('cache-control', 'no-store');
  if (page === null) reply.send(error);
  else {
    reply
      .type('text/html; charset=utf-8')
      .send(page.error({ code: error.error, description: error.error_description, requestId: request.id }));
  }
}

function refusalDescription({ status }: Problem): string {
  return status === 413
    ? `the request body is larger than ${bodyBytesMax} bytes`
    : 'the request body did not come as a whole';
}
