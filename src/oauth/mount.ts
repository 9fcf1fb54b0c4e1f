/**
 * The engine's routes on our application: which path takes which method, and what a request looks like when the
 * engine gets it. Host and protocol are the base URL's, whatever the client or a proxy sent; the body is not read
 * before the engine reads it.
 */

import type { IncomingMessage } from 'node:http';
import { parse, stringify } from 'node:querystring';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { mediaType } from '../http/media_types.ts';
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

/** The largest form taken, in bytes: the engine's own limit. */
const formBytesMax = 56 * 1_024;

/** @param provider gives the engine of the moment: after a rotation of keys it is another one */
export function mountProvider(
  app: FastifyInstance,
  baseUrl: string,
  provider: () => Provider,
  settings: OAuthSettings,
  refuseTooMany: RefuseTooMany,
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
        if (!refuseTooMany(request, reply, path)) await hand(request, reply, replaces);
      };
      for (const method of methods) scope.route({ method, url: path, onRequest, handler: neverReached });
      scope.options(path, async (request, reply) => {
        const isPreflight = request.headers['access-control-request-method'] !== undefined;
        if (isPreflight && !isPage) return hand(request, reply, false);
        return reply
          .code(204)
          .header('allow', [...methods, 'OPTIONS'].join(', '))
          .send();
      });
    }
  });

  async function hand(request: FastifyRequest, reply: FastifyReply, replaces: boolean): Promise<void> {
    const { raw } = request;
    normalize(request);
    if (replaces) await replaceToken(raw);
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

/** Reads the form and gives the request another body in its place, in which a JWT is not known as one. */
async function replaceToken(raw: IncomingMessage): Promise<void> {
  if (mediaType(raw.headers['content-type']) !== 'application/x-www-form-urlencoded') return;
  const chunks: Buffer[] = [];
  let received = 0;
  for await (const chunk of raw) {
    received += (chunk as Buffer).length;
    // Left as it is: the engine refuses what is too large.
    if (received <= formBytesMax) chunks.push(chunk as Buffer);
  }
  const form = parse(Buffer.concat(chunks).toString());
  if (typeof form.token === 'string') form.token = toOpaqueForm(form.token);
  const body = Buffer.from(received > formBytesMax ? '' : stringify(form));
  raw.headers['content-length'] = String(received > formBytesMax ? received : body.length);
  Object.defineProperties(raw, {
    readable: { value: true },
    iterator: {
      value: async function* () {
        yield body;
      },
    },
  });
}
