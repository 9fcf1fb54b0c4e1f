/**
 * Rate limit of the endpoints where clients authenticate: token, introspection, revocation, pushed requests (RFC 9126 section 2.3) and device
 * requests.
 *
 * Requests of an authenticated client count against the client. A public client only names itself, so its requests count
 * against the pair of client and address: nobody else can use up its limit. All public clients of one address share the
 * limit of one authenticated client, because anyone can register any number of them. All other requests count against
 * the address. Where the named client has authenticated from that address, which apps of others may share, they count against the pair.
 *
 * Visitors of an app cause its pushed and device requests, so these have a limit of their own. Each stores a row: those of clients that
 * registered themselves count against the address, as authorization requests do.
 *
 * Visitors can also bring invented codes, so refused codes have a limit of their own. Above that, only codes that this server issued to the app go on. Requests for the tokens of
 * devices have another one. Above that, those of devices about which somebody has decided go on, and the others get their answer from one look-up.
 *
 * An API (a client that may introspect the tokens of others) asks on behalf of whoever calls it. Its callers must not use up its
 * limit, nor that of other users of their app. So an introspection of an active token counts for its account and app. An introspection of any other
 * token has a limit of its own. Above that, this node looks up only opaque tokens that it knows.
 *
 * A request counts after the response, because only then is its client authenticated. It is rejected before that if the client
 * that it names, or its address, has reached the limit. Concurrent requests may therefore exceed the limit slightly.
 */

import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { isSelfRegistered } from '../clients/self_registered.ts';
import { onlyRead } from '../database/connection_user.ts';
import { introspectionScope } from '../grants/scopes.ts';
import { Problem } from '../http/problem.ts';
import { type RateState, rateHeaders } from '../http/rate_limit.ts';
import {
  addressBeginKeys,
  clientBeginKey,
  clientKey,
  devicePollsKey,
  embeddedKeys,
  failureKeys,
  holderKey,
  type Key,
  knownFailureKeys,
  pageBeginKeys,
  publicKeys,
  refusedCodesKey,
  unknownTokensKey,
} from './endpoint_keys.ts';
import {
  attemptKeys,
  type ClaimedClient,
  claimedClient,
  introspectedToken,
  isEmbedded,
  isOfOtherPage,
  type RedeemedCode,
  redeemedCode,
} from './endpoint_request.ts';
import { limitedError, reportLimited } from './limited_request.ts';
import type { ProviderOptions } from './provider_options.ts';

/** Endpoints that start a flow. */
const beginPaths: ReadonlySet<string> = new Set(['/oauth/par', '/oauth/device']);
const limitedPaths: ReadonlySet<string> = new Set([
  '/oauth/token',
  '/oauth/introspect',
  '/oauth/revoke',
  ...beginPaths,
]);

type Client = Pick<NonNullable<KoaContextWithOIDC['oidc']['client']>, 'clientId' | 'clientAuthMethod'>;
type Options = Pick<ProviderOptions, 'limiter' | 'clients' | 'verifier' | 'traces' | 'knownNetworks'>;

/** Adds the rate limit to oidc-provider's middleware. */
export function useEndpointLimit(provider: Provider, options: Options): void {
  const limit = new EndpointLimit(provider, options);
  provider.use(async (ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    if (ctx.method !== 'POST' || !limitedPaths.has(ctx.path)) return next();
    // The APIs that ask must not wait behind changes of rows that others have locked.
    if (ctx.path === '/oauth/introspect') onlyRead();
    const claimed = claimedClient(ctx);
    if (await limit.refuses(ctx, claimed)) return;
    await next();
    await limit.count(ctx, claimed);
  });
}

class EndpointLimit {
  readonly #provider: Provider;
  readonly #options: Options;

  constructor(provider: Provider, options: Options) {
    this.#provider = provider;
    this.#options = options;
  }

  /** Refuses a request whose limit is reached. @returns whether it did */
  async refuses(ctx: KoaContextWithOIDC, claimed: ClaimedClient | undefined): Promise<boolean> {
    const keys = await this.#keysBefore(ctx, claimed);
    if (claimed !== undefined && this.#isUnknownToken(ctx)) keys.push(unknownTokensKey(claimed.id));
    for (const key of keys) {
      const problem = this.#reached(key);
      if (problem !== undefined) return this.#refuse(ctx, claimed, key, problem);
    }
    const redeemed = redeemedCode(ctx);
    if (claimed === undefined || redeemed === undefined) return false;
    const key = codesKey(redeemed, claimed.id);
    const problem = this.#reached(key);
    if (problem === undefined) return false;
    const state = await this.#stateOf(redeemed, claimed.id);
    if (state === 'redeemable') return false;
    // Whoever only names the app has the code looked up, too.
    if (!this.#options.knownNetworks.has(claimed.id, ctx.ip)) this.#note(failureKeys(ctx.ip));
    if (state === 'undecided') return keepWaiting(ctx);
    return this.#refuse(ctx, claimed, key, problem);
  }

  /** Counts a finished request. The response headers report the state of the last key. */
  async count(ctx: KoaContextWithOIDC, claimed: ClaimedClient | undefined): Promise<void> {
    if (await this.#isOfApi(ctx)) return this.#countForApi(ctx);
    const state = this.#note(await this.#keysAfter(ctx, claimed));
    if (state !== undefined) ctx.set(rateHeaders(state));
  }

  /** @returns the state of the last key */
  #note(keys: readonly Key[]): RateState | undefined {
    return keys.map(({ key, factor }) => this.#options.limiter.note(key, factor)).at(-1);
  }

  /** Whether a page that is none of the app's has a browser send the request. */
  async #isEmbedded({ req }: KoaContextWithOIDC, claimed: ClaimedClient | undefined): Promise<boolean> {
    if (isEmbedded(req)) return true;
    if (!isOfOtherPage(req)) return false;
    const cached = await this.#options.clients.find(claimed?.id ?? '').catch(() => undefined);
    const origins = cached?.client.redirectUris.map((uri) => URL.parse(uri)?.origin) ?? [];
    return !origins.includes(req.headers.origin);
  }

  async #keysBefore(ctx: KoaContextWithOIDC, claimed: ClaimedClient | undefined): Promise<Key[]> {
    const isBegin = beginPaths.has(ctx.path);
    if (await this.#isEmbedded(ctx, claimed)) {
      // Whoever authenticates counts for the client, whatever headers it sends.
      const ofClaimed = claimed === undefined ? [] : await this.#keysOfClient(ctx, claimed.id);
      return [...embeddedKeys(ctx.ip), ...ofClaimed];
    }
    if (claimed === undefined) return isBegin ? beginKeys(ctx) : failureKeys(ctx.ip);
    const { id, isNamedOnly } = claimed;
    if (this.#options.knownNetworks.has(id, ctx.ip)) {
      return [...knownFailureKeys(id, ctx.ip), ...(await this.#keysOfClient(ctx, id))];
    }
    if (isBegin) return [...beginKeys(ctx), clientBeginKey(id)];
    // It may be a public client, or authenticate by certificate.
    return [...failureKeys(ctx.ip), clientKey(id), ...(isNamedOnly ? publicKeys(id, ctx.ip) : [])];
  }

  async #keysAfter(ctx: KoaContextWithOIDC, claimed: ClaimedClient | undefined): Promise<Key[]> {
    const { knownNetworks } = this.#options;
    const client: Client | undefined = ctx.status === 401 ? undefined : ctx.oidc?.client;
    const isAuthenticated = client !== undefined && client.clientAuthMethod !== 'none';
    if (!isAuthenticated && (await this.#isEmbedded(ctx, claimed))) return embeddedKeys(ctx.ip);
    const isBegin = beginPaths.has(ctx.path);
    if (client === undefined) {
      const isKnown = claimed !== undefined && knownNetworks.has(claimed.id, ctx.ip);
      if (isKnown) return knownFailureKeys(claimed.id, ctx.ip);
      return isBegin ? beginKeys(ctx) : failureKeys(ctx.ip);
    }
    const { clientId, clientAuthMethod } = client;
    if (clientAuthMethod === 'none') {
      return isBegin ? beginKeys(ctx) : publicKeys(clientId, ctx.ip);
    }
    knownNetworks.add(clientId, ctx.ip);
    const redeemed = isRefused(ctx) ? redeemedCode(ctx) : undefined;
    return redeemed === undefined ? this.#keysOfClient(ctx, clientId) : [codesKey(redeemed, clientId)];
  }

  /** Of a client with credentials. */
  async #keysOfClient(ctx: KoaContextWithOIDC, id: string): Promise<Key[]> {
    if (!beginPaths.has(ctx.path)) return [clientKey(id)];
    const cached = await this.#options.clients.find(id).catch(() => undefined);
    return cached === undefined || isSelfRegistered(cached.client) ? beginKeys(ctx) : [clientBeginKey(id)];
  }

  #reached({ key, factor }: Key): Problem | undefined {
    try {
      this.#options.limiter.peek(key, factor);
      return undefined;
    } catch (error) {
      if (error instanceof Problem) return error;
      throw error;
    }
  }

  /** Only token requests, and those that begin a flow, are steps of a connection. */
  #refuse(
    ctx: KoaContextWithOIDC,
    claimed: ClaimedClient | undefined,
    { remedy }: Key,
    problem: Problem,
  ): true {
    respond(ctx, problem);
    const isBegin = beginPaths.has(ctx.path);
    if (!isBegin && ctx.path !== '/oauth/token') return true;
    const { traces, clients } = this.#options;
    reportLimited(traces, clients, {
      name: isBegin ? 'authorize' : 'token',
      requestId: String(ctx.res.getHeader('request-id') ?? ''),
      address: ctx.ip,
      clientId: claimed?.id,
      ...{ problem, remedy },
      keys: () => attemptKeys(ctx),
    });
    return true;
  }

  #isUnknownToken(ctx: KoaContextWithOIDC): boolean {
    const token = introspectedToken(ctx);
    return token !== undefined && isOpaque(token) && !this.#options.verifier.isKnown(token);
  }

  /** What a code is for the app. Here, to look for a device's is no poll. */
  async #stateOf({ code, isOfDevice }: RedeemedCode, clientId: string): Promise<CodeState> {
    const { AuthorizationCode, DeviceCode } = this.#provider;
    if (!isOfDevice) {
      const found = await AuthorizationCode.find(code);
      return found?.clientId === clientId ? 'redeemable' : 'unknown';
    }
    const device = await DeviceCode.find(code);
    if (device?.clientId !== clientId) return 'unknown';
    return device.accountId === undefined && device.error === undefined ? 'undecided' : 'redeemable';
  }

  /** Whether an API has introspected a token. */
  async #isOfApi(ctx: KoaContextWithOIDC): Promise<boolean> {
    const client: Client | undefined = ctx.oidc?.client;
    if (client === undefined || client.clientAuthMethod === 'none') return false;
    if (ctx.status !== 200 || introspectedToken(ctx) === undefined) return false;
    const cached = await this.#options.clients.find(client.clientId).catch(() => undefined);
    return cached?.client.scopes.includes(introspectionScope) === true;
  }

  /** Counts an introspection by an API, whose response becomes a refusal if what it found is above its limit. */
  #countForApi(ctx: KoaContextWithOIDC): void {
    const { clientId } = ctx.oidc.client as Client;
    const { active, client_id: app = '', sub = app } = ctx.body as Introspection;
    this.#options.knownNetworks.add(clientId, ctx.ip);
    const ofHolder = sub === clientId ? clientKey(clientId) : holderKey(clientId, app, sub);
    const { key, factor } = active ? ofHolder : unknownTokensKey(clientId);
    try {
      const state = this.#options.limiter.count(key, factor);
      if (state !== undefined) ctx.set(rateHeaders(state));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      respond(ctx, error);
    }
  }
}

/** What counts a request that begins a flow for its network. */
function beginKeys({ req, ip }: KoaContextWithOIDC): Key[] {
  return isOfOtherPage(req) ? pageBeginKeys(ip) : addressBeginKeys(ip);
}

/** What counts codes that were refused. */
function codesKey({ isOfDevice }: RedeemedCode, clientId: string): Key {
  return isOfDevice ? devicePollsKey(clientId) : refusedCodesKey(clientId);
}

/** Of a code that an app redeems. Undecided: the device waits for somebody to sign in. */
type CodeState = 'redeemable' | 'undecided' | 'unknown';

/**
 * Answers as if the request had been read (RFC 8628 section 3.5), without authenticating the client or recording the poll. With 429 and the rest of the minute, the
 * device would still wait after somebody has signed in.
 */
function keepWaiting(ctx: KoaContextWithOIDC): true {
  ctx.status = 400;
  ctx.set('cache-control', 'no-store');
  ctx.body = {
    error: 'authorization_pending',
    error_description:
      "authorization request is still pending as the end-user hasn't yet completed the user interaction steps",
  };
  return true;
}

interface Introspection {
  active: boolean;
  client_id?: string;
  /** The account, or the app that acts for itself. */
  sub?: string;
}

function respond(ctx: KoaContextWithOIDC, { status, headers }: Problem): void {
  ctx.status = status;
  ctx.set({ ...headers, 'cache-control': 'no-store' });
  ctx.body = { error: limitedError, error_description: 'too many requests, try again later' };
}

/** What the responses say if the grant is not valid, or not yet (RFC 6749 section 5.2, RFC 8628 section 3.5). */
const refusals: ReadonlySet<unknown> = new Set([
  'invalid_grant',
  'authorization_pending',
  'slow_down',
  'expired_token',
]);

function isRefused(ctx: KoaContextWithOIDC): boolean {
  return ctx.status === 400 && refusals.has((ctx.body as { error?: unknown } | undefined)?.error);
}

/** A JWT is verified without a lookup of the token, and an API introspects only those that it has verified itself. */
function isOpaque(token: string): boolean {
  return !token.includes('.');
}
