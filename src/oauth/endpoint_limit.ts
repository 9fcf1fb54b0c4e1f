/**
 * Rate limit of the endpoints where clients authenticate: token, introspection, revocation.
 *
 * Requests of an authenticated client count against the client. A public client only names itself, so its requests count
 * against the pair of client and address: nobody else can use up its limit. All public clients of one address share the
 * limit of one authenticated client, because anyone can register any number of them. All other requests count against
 * the address.
 *
 * An API (a client that may introspect the tokens of others) asks on behalf of whoever calls it. Its callers must not use up its
 * limit, nor that of other users of their app. So an introspection of an active token counts for its account and app. An introspection of any other
 * token has a limit of its own. Above that, this node looks up only opaque tokens that it knows.
 *
 * A request counts after the response, because only then is its client authenticated. It is rejected before that if the client
 * that it names, or its address, has reached the limit. Concurrent requests may therefore exceed the limit slightly.
 */

import type { IncomingMessage } from 'node:http';
import { parse } from 'node:querystring';
import { decodeJwt } from 'jose';
import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { stepKey } from '../connections/step.ts';
import { onlyRead } from '../database/connection_user.ts';
import { introspectionScope } from '../grants/scopes.ts';
import { networksOf, wideLimitFactor } from '../http/network.ts';
import { Problem } from '../http/problem.ts';
import { type RateLimiter, rateHeaders } from '../http/rate_limit.ts';
import { addressRemedy, limitedError, reportLimited } from './limited_request.ts';
import type { ProviderOptions } from './provider_options.ts';

const limitedPaths: ReadonlySet<string> = new Set(['/oauth/token', '/oauth/introspect', '/oauth/revoke']);

/** Factor on the limit for authenticated clients: one client sends requests for all of its users. */
const clientFactor = 10;

const bodies = new WeakMap<IncomingMessage, Buffer>();

/** Stores the body of a request for the lifetime of the request object: the body may name the client. */
export function rememberBody(raw: IncomingMessage, body: Buffer): void {
  bodies.set(raw, body);
}

interface Key {
  key: string;
  factor: number;
  /** What the limit counts, and what to do. */
  remedy: string;
}

const remedies = {
  app: 'It counts the requests of the app for tokens, introspection and revocation. Use each access token until it expires.',
  publicApps: `It counts the requests of apps without credentials at one address. Use each access token until it expires. ${addressRemedy}`,
  failures: `It counts the requests at one address that were refused because no app authenticated. Correct the client_id and its credentials. ${addressRemedy}`,
};

/** Adds the rate limit to oidc-provider's middleware. */
export function useEndpointLimit(
  provider: Provider,
  {
    limiter,
    clients,
    verifier,
    traces,
  }: Pick<ProviderOptions, 'limiter' | 'clients' | 'verifier' | 'traces'>,
): void {
  provider.use(async (ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    if (ctx.method !== 'POST' || !limitedPaths.has(ctx.path)) return next();
    // The APIs that ask must not wait behind changes of rows that others have locked.
    if (ctx.path === '/oauth/introspect') onlyRead();
    const claimed = claimedClient(ctx);
    const keys = [...failureKeys(ctx.ip), ...(claimed === undefined ? [] : claimedKeys(claimed, ctx.ip))];
    if (claimed !== undefined && isUnknownToken(ctx)) keys.push(unknownTokenKey(claimed.id));
    for (const { key, factor, remedy } of keys) {
      try {
        limiter.peek(key, factor);
      } catch (error) {
        refuse(ctx, error);
        return report(ctx, claimed?.id, error as Problem, remedy);
      }
    }
    await next();
    if (!(await isOfApi(ctx))) return count(ctx, limiter);
    try {
      countForApi(ctx, limiter);
    } catch (error) {
      refuse(ctx, error);
    }
  });

  /** Only token requests are steps of a connection. */
  function report(
    ctx: KoaContextWithOIDC,
    clientId: string | undefined,
    problem: Problem,
    remedy: string,
  ): void {
    if (ctx.path !== '/oauth/token') return;
    reportLimited(traces, clients, {
      ...{ name: 'token', requestId: String(ctx.res.getHeader('request-id') ?? ''), address: ctx.ip },
      ...{ clientId, problem, remedy },
      keys: () => attemptKeys(ctx),
    });
  }

  function isUnknownToken(ctx: KoaContextWithOIDC): boolean {
    const token = introspectedToken(ctx);
    return token !== undefined && isOpaque(token) && !verifier.isKnown(token);
  }

  /** Whether an API has introspected a token. */
  async function isOfApi(ctx: KoaContextWithOIDC): Promise<boolean> {
    const client: Client | undefined = ctx.oidc?.client;
    if (client === undefined || client.clientAuthMethod === 'none') return false;
    if (ctx.status !== 200 || introspectedToken(ctx) === undefined) return false;
    const cached = await clients.find(client.clientId).catch(() => undefined);
    return cached?.client.scopes.includes(introspectionScope) === true;
  }
}

interface Introspection {
  active: boolean;
  client_id?: string;
  /** The account, or the app that acts for itself. */
  sub?: string;
}

/** Counts an introspection by an API. @throws Problem 429 if what it found is above its limit */
function countForApi(ctx: KoaContextWithOIDC, limiter: RateLimiter): void {
  const { clientId } = ctx.oidc.client as Client;
  const { active, client_id: app = '', sub = app } = ctx.body as Introspection;
  const ofHolder = sub === clientId ? clientKey(clientId) : holderKey(clientId, app, sub);
  const { key, factor } = active ? ofHolder : unknownTokenKey(clientId);
  const state = limiter.count(key, factor);
  if (state !== undefined) ctx.set(rateHeaders(state));
}

/** Counts a finished request. The response headers report the state of the last key. */
function count(ctx: KoaContextWithOIDC, limiter: RateLimiter): void {
  const client = ctx.status === 401 ? undefined : ctx.oidc?.client;
  const keys = client === undefined ? failureKeys(ctx.ip) : keysOf(client, ctx.ip);
  for (const { key, factor } of keys) {
    const state = limiter.note(key, factor);
    if (state !== undefined) ctx.set(rateHeaders(state));
  }
}

function refuse(ctx: KoaContextWithOIDC, error: unknown): void {
  if (!(error instanceof Problem)) throw error;
  ctx.status = error.status;
  ctx.set({ ...error.headers, 'cache-control': 'no-store' });
  ctx.body = { error: limitedError, error_description: 'too many requests, try again later' };
}

type Client = Pick<NonNullable<KoaContextWithOIDC['oidc']['client']>, 'clientId' | 'clientAuthMethod'>;

function keysOf({ clientId, clientAuthMethod }: Client, address: string): Key[] {
  return clientAuthMethod === 'none' ? publicKeys(clientId, address) : [clientKey(clientId)];
}

interface Claimed {
  id: string;
  /** Whether the request contains no credentials besides the client id. */
  isNamedOnly: boolean;
}

/** A client that is only named may be a public client, or authenticate by certificate. */
function claimedKeys({ id, isNamedOnly }: Claimed, address: string): Key[] {
  return [clientKey(id), ...(isNamedOnly ? publicKeys(id, address) : [])];
}

function clientKey(id: string): Key {
  return { key: `oauth client:${id}`, factor: clientFactor, remedy: remedies.app };
}

function holderKey(id: string, app: string, holder: string): Key {
  return {
    key: `oauth client:${id} app:${app} holder:${holder}`,
    factor: clientFactor,
    remedy: remedies.app,
  };
}

/** Tokens that strangers send to an API. */
function unknownTokenKey(id: string): Key {
  return { key: `oauth unknown tokens:${id}`, factor: clientFactor, remedy: remedies.app };
}

function publicKeys(id: string, address: string): Key[] {
  return [
    ...addressKeys('oauth public', address, clientFactor, remedies.publicApps),
    ...addressKeys(`oauth client:${id}`, address, 1, remedies.publicApps),
  ];
}

function failureKeys(address: string): Key[] {
  return addressKeys('oauth', address, 1, remedies.failures);
}

/** The narrow network comes last: its state is the one that is reported. */
function addressKeys(prefix: string, address: string, factor: number, remedy: string): Key[] {
  const { near, wide } = networksOf(address);
  const own = { key: `${prefix} address:${near}`, factor, remedy };
  return wide === null
    ? [own]
    : [{ key: `${prefix} address:${wide}`, factor: factor * wideLimitFactor, remedy }, own];
}

/** The client that a request names, before it is authenticated. */
function claimedClient(ctx: KoaContextWithOIDC): Claimed | undefined {
  const basic = /^basic ([A-Za-z0-9+/=]+)$/i.exec(ctx.get('authorization'))?.[1];
  if (basic !== undefined) {
    const [id = ''] = Buffer.from(basic, 'base64').toString().split(':', 1);
    return { id: String(parse(`id=${id}`).id), isNamedOnly: false };
  }
  const form = parse((bodies.get(ctx.req) ?? '').toString());
  const [id, secret, assertion] = [form.client_id, form.client_secret, form.client_assertion].map(textOf);
  const claimed = id ?? (assertion === undefined ? undefined : subjectOf(assertion));
  if (claimed === undefined) return undefined;
  return { id: claimed, isNamedOnly: secret === undefined && assertion === undefined };
}

/** What a token request shares with the other steps of its attempt. Nobody but the app knows its code. */
function attemptKeys(ctx: KoaContextWithOIDC): string[] {
  const { code, device_code: device } = parse((bodies.get(ctx.req) ?? '').toString());
  const [sentCode, sentDevice] = [textOf(code), textOf(device)];
  if (sentCode !== undefined) return [stepKey('code', sentCode)];
  return sentDevice === undefined ? [] : [stepKey('device', sentDevice)];
}

function introspectedToken(ctx: KoaContextWithOIDC): string | undefined {
  if (ctx.path !== '/oauth/introspect') return undefined;
  return textOf(parse((bodies.get(ctx.req) ?? '').toString()).token);
}

/** A JWT is verified without a lookup of the token, and an API introspects only those that it has verified itself. */
function isOpaque(token: string): boolean {
  return !token.includes('.');
}

/** oidc-provider treats an empty parameter as absent. */
function textOf(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

function subjectOf(assertion: string): string | undefined {
  try {
    const { sub } = decodeJwt(assertion);
    return typeof sub === 'string' ? sub : undefined;
  } catch {
    return undefined;
  }
}
