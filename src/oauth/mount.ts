/**
 * Mounts oidc-provider on the Fastify application. Defines the methods of each path, and normalizes requests: host and
 * protocol are always those of the base URL. Fastify does not parse the bodies, because oidc-provider does.
 */

import { parse, stringify } from 'node:querystring';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { readBody } from '../http/body_limit.ts';
import { mediaType } from '../http/media_types.ts';
import { Problem } from '../http/problem.ts';
import { isCostlyUrl } from '../shared/url.ts';
import { isEmbedded, rememberBody } from './endpoint_request.ts';
import type { ProviderPages } from './provider_options.ts';
import { registrationPath } from './registration/registration.ts';
import type { RejectIfLimited } from './request_limit.ts';
import { refuseLargeRequest } from './request_size.ts';
import type { OAuthSettings } from './settings.ts';
import { toOpaqueForm } from './storage/access_token.ts';

type Route = [path: string, ...methods: ('GET' | 'POST' | 'PUT' | 'DELETE')[]];

/** oidc-provider's paths with their methods, in addition to OPTIONS. */
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

/** Pages for browsers, which use cookies. They are not readable across origins. */
const pagePaths = /^\/(?:oauth\/authorize|oauth\/logout|device)(?:\/|$)/;

/** Endpoints whose `token` parameter may be a JWT here, but not in oidc-provider. */
const jwtTokenPaths = new Set(['/oauth/revoke', '/oauth/introspect']);

/** Apps in a browser revoke tokens by `navigator.sendBeacon` when their page is closed. */
const beaconPaths = new Set(['/oauth/revoke']);

/** Headers of pages and redirects (RFC 9700 sections 4.2.4 and 4.16). oidc-provider adds the hash of its script. */
const pageHeaders: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'none'; script-src; style-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  // oidc-provider sets it only on its other responses, and not on the pages of a device.
  'cache-control': 'no-store',
};

/** Browsers send some 150 characters. oidc-provider takes quadratic time for a header that quotes many commas. */
const acceptLengthMax = 1_024;

/** Maximum size of a request body in bytes, which is oidc-provider's own limit. */
const bodyBytesMax = 56 * 1_024;

/** Parameters in a URL. Koa takes quadratic time for them: 60 ms for those of 15 KB, and one address stopped a node with these. Forms have at most a thousand. */
const queryParametersMax = 512;

/** Smaller forms have no URL that the parser could take long for. */
const costlyFormBytesMin = 2_048;

/** @param provider returns the current provider, which changes with the signing keys */
export function mountProvider(
  app: FastifyInstance,
  baseUrl: string,
  provider: () => Provider,
  settings: OAuthSettings,
  rejectIfLimited: RejectIfLimited,
  pages: ProviderPages,
): void {
  const normalize = requestNormalizer(baseUrl);
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, _payload, done) => done(null));
    const enabled = settings.registration === 'off' ? routes : [...routes, ...registrationRoutes];
    for (const [path, ...methods] of enabled) {
      const isPage = pagePaths.test(path);
      // Runs in the onRequest hook, before Fastify parses the body. The later stages are not used.
      const onRequest = async (request: FastifyRequest, reply: FastifyReply) => {
        if (isPage) reply.headers({ ...pageHeaders });
        if (isEmbedded(request.raw) && !beaconPaths.has(path)) {
          return refuse(embedded(), request, reply, isPage ? pages : null);
        }
        if (hasTooManyParameters(request.url)) {
          return refuse(tooManyParameters(), request, reply, isPage ? pages : null);
        }
        if (rejectIfLimited(request, reply, path)) return;
        try {
          await readWithinLimit(request, path);
        } catch (error) {
          if (!(error instanceof Problem)) throw error;
          return refuse(error, request, reply, isPage ? pages : null);
        }
        await dispatch(request, reply);
      };
      const shared = { url: path, bodyLimit: bodyBytesMax, onRequest, handler: unreachable };
      for (const method of methods) scope.route({ method, ...shared });
      scope.options(path, async (request, reply) => {
        const isPreflight = request.headers['access-control-request-method'] !== undefined;
        if (isPreflight && !isPage && !hasTooManyParameters(request.url)) return dispatch(request, reply);
        return reply
          .code(204)
          .header('allow', [...methods, 'OPTIONS'].join(', '))
          .send();
      });
    }
  });

  async function dispatch(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    const { raw } = request;
    normalize(request);
    reply.hijack();
    const headers = reply.getHeaders();
    for (const name in headers) setHeader(reply, name, headers[name]);
    try {
      await callbackOf(provider())(raw, reply.raw);
    } finally {
      request.place?.leave();
    }
  }
}

function setHeader(reply: FastifyReply, name: string, value: number | string | string[] | undefined): void {
  if (value !== undefined) reply.raw.setHeader(name, value);
}

/** Looks no further than the last that is allowed. */
function hasTooManyParameters(url: string): boolean {
  let at = url.indexOf('?');
  for (let count = 0; at >= 0 && count < queryParametersMax; count += 1) at = url.indexOf('&', at + 1);
  return at >= 0;
}

function embedded(): Problem {
  return new Problem(403, 'pages of other sites cannot embed this address');
}

function tooManyParameters(): Problem {
  return new Problem(400, `the request has more than ${queryParametersMax} parameters`);
}

function unreachable(): void {
  throw new Error('unreachable: oidc-provider responds in onRequest');
}

/**
 * Makes host and protocol those of the base URL, whatever the client or a proxy sent.
 * @returns a function that normalizes the headers of a request in place
 */
export function requestNormalizer(baseUrl: string): (request: FastifyRequest) => void {
  const { host, protocol } = new URL(baseUrl);
  return (request) => {
    // The client's address as reported by a trusted proxy; read before the headers are removed.
    const { ip } = request;
    const { headers } = request.raw;
    for (const name in headers) {
      if (name === 'forwarded' || name.startsWith('x-forwarded-')) delete headers[name];
      // Attestation-based client authentication is not supported. With these headers oidc-provider would report that the named
      // client did not authenticate, and the request would count against that client (endpoint_limit.ts).
      if (name.startsWith('oauth-client-attestation')) delete headers[name];
    }
    if ((headers.accept ?? '').length > acceptLengthMax) delete headers.accept;
    headers.host = host;
    headers['x-forwarded-proto'] = protocol.slice(0, -1);
    headers['x-forwarded-for'] = ip;
  };
}

type Callback = ReturnType<Provider['callback']>;
const callbacks = new WeakMap<Provider, Callback>();

/** Caches the callback: oidc-provider composes its middleware on every call. */
function callbackOf(provider: Provider): Callback {
  let callback = callbacks.get(provider);
  if (callback === undefined) {
    callback = provider.callback();
    callbacks.set(provider, callback);
  }
  return callback;
}

/**
 * Reads the body within the limit and attaches it to the raw request.
 * @throws Problem 413 if the body or its parameters exceed their limit, 400 if a URL in it would cost much
 */
async function readWithinLimit(request: FastifyRequest, path: string): Promise<void> {
  const { raw } = request;
  const { headers } = raw;
  if (headers['content-length'] === undefined && headers['transfer-encoding'] === undefined) return;
  const received = await readBody(request, bodyBytesMax);
  rememberBody(raw, received);
  const isForm = mediaType(headers['content-type']) === 'application/x-www-form-urlencoded';
  if (isForm) {
    refuseLargeRequest(path, received);
    refuseCostlyUrls(received);
  }
  const body = isForm && jwtTokenPaths.has(path) ? withOpaqueToken(received) : received;
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

/** oidc-provider parses these itself. */
function refuseCostlyUrls(body: Buffer): void {
  if (body.length <= costlyFormBytesMin) return;
  const form = parse(body.toString());
  for (const name of ['redirect_uri', 'resource']) {
    if ([form[name] ?? []].flat().some(isCostlyUrl)) throw new Problem(400, `${name} is too long`);
  }
}

function withOpaqueToken(body: Buffer): Buffer {
  const form = parse(body.toString());
  if (typeof form.token !== 'string') return body;
  return Buffer.from(stringify({ ...form, token: toOpaqueForm(form.token) }));
}

/** Responds to a request that does not reach oidc-provider: with a page for browsers, otherwise in its JSON format. */
function refuse(
  problem: Problem,
  request: FastifyRequest,
  reply: FastifyReply,
  page: ProviderPages | null,
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

function refusalDescription({ status, code, message }: Problem): string {
  if (code === undefined) return message;
  return status === 413
    ? `the request body is larger than ${bodyBytesMax} bytes`
    : 'the request body is incomplete';
}
