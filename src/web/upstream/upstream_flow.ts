/**
 * The HTTP routes of a sign-in with an upstream OpenID provider (accounts/upstream/upstream_login.ts). They work without
 * JavaScript.
 *
 *   POST …/interaction/<uid> or /account/upstream → the provider → GET /login/<provider>/callback
 *     → GET /interaction/<uid>/upstream or /account/upstream → signed in, or a page with a choice
 *
 * The callback has one path, because it is registered at the provider. The last step has the path of the page that it
 * continues, so that the browser sends the cookies of that page.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { UpstreamProvider } from '../../accounts/upstream/provider_settings.ts';
import {
  type AuthorizationHints,
  type UpstreamClient,
  UpstreamError,
} from '../../accounts/upstream/upstream_client.ts';
import {
  findPurpose,
  findVerifiedLogin,
  isLoginKey,
  loginKeyOf,
  returnFromProvider,
  startUpstreamLogin,
  storeIdentity,
  type UpstreamLogin,
  upstreamLoginSeconds,
  type VerifiedLogin,
} from '../../accounts/upstream/upstream_login.ts';
import type { Database } from '../../database/database.ts';
import { readCookie } from '../../http/cookie.ts';
import { countAddress, type RateLimiter } from '../../http/rate_limit.ts';
import { sendPage } from '../page.ts';
import type { RefusedPage, SignInTrace } from '../sign_in_trace.ts';
import { lostUpstream, refusedByProvider, tooManySignIns } from './refusals.ts';
import { errorPage, tooManyContent, unfinishedContent } from './upstream_pages.ts';

/** The purpose of a sign-in. */
export interface UpstreamPurpose {
  /** The authorization request; null for the account page. */
  interactionUid: string | null;
  /** The signed-in account to connect the provider to; null for a sign-in. */
  accountId: string | null;
  hints: AuthorizationHints;
  /** Told why the sign-in does not begin. */
  refused?: (refusal: RefusedPage) => void;
}

/** A sign-in with a verified identity, and the secret from the browser's cookie. */
export interface WaitingLogin {
  browserSecret: string;
  login: VerifiedLogin;
  provider: UpstreamProvider;
}

export interface UpstreamFlow {
  providers: readonly UpstreamProvider[];
  /**
   * Redirects the browser to a provider, or sends a page with the reason.
   * @throws Problem 429 if the client address has started too many sign-ins
   */
  begin: (
    request: FastifyRequest,
    reply: FastifyReply,
    providerId: unknown,
    purpose: UpstreamPurpose,
  ) => Promise<FastifyReply>;
  /** Finds the verified sign-in of this browser. Sends a page and returns undefined if there is none. */
  waiting: (
    request: FastifyRequest,
    reply: FastifyReply,
    interactionUid: string | null,
  ) => Promise<WaitingLogin | undefined>;
}

export interface UpstreamFlowOptions {
  app: FastifyInstance;
  db: Database;
  baseUrl: string;
  clients: readonly UpstreamClient[];
  limiter: RateLimiter;
  signInTrace: SignInTrace;
}

export function callbackPath(providerId: string): string {
  return `/login/${providerId}/callback`;
}

export function createUpstreamFlow(options: UpstreamFlowOptions): UpstreamFlow {
  const { app, db, baseUrl, limiter, signInTrace } = options;
  const clients = new Map(options.clients.map((client) => [client.provider.id, client]));
  const isSecure = baseUrl.startsWith('https:');
  // Lax, because the provider redirects the browser from another site.
  const attributes = `Path=/; HttpOnly; SameSite=Lax; Max-Age=${upstreamLoginSeconds}${isSecure ? '; Secure' : ''}`;
  const cookieName = (loginKey: string) => `${isSecure ? '__Host-' : ''}nuncio_upstream_${loginKey}`;
  const readSecret = (request: FastifyRequest, loginKey: string) =>
    readCookie(request.headers.cookie, cookieName(loginKey));

  // A HEAD request would use up the sign-in.
  app.get<{ Params: { provider: string } }>(
    callbackPath(':provider'),
    { exposeHeadRoute: false },
    async (request, reply) => {
      const client = clients.get(request.params.provider);
      const { state } = request.query as Record<string, unknown>;
      if (client === undefined || typeof state !== 'string') return lost(request, reply, state);
      const loginKey = loginKeyOf(state);
      const browserSecret = readSecret(request, loginKey);
      if (browserSecret === undefined) return lost(request, reply, state);
      const login = await returnFromProvider(db, client.provider.id, state, browserSecret);
      if (login === undefined) return lost(request, reply, state);
      try {
        const { search } = new URL(request.url, baseUrl);
        const url = new URL(callbackPath(client.provider.id) + search, baseUrl);
        const identity = await client.exchange(url, { state, browserSecret }, request.ip);
        await storeIdentity(db, browserSecret, identity);
      } catch (error) {
        if (error instanceof UpstreamError && login.interactionUid !== null) {
          const refusal = refusedByProvider(error, client.provider.name);
          await signInTrace.refusedOf(request, login.interactionUid, refusal);
        }
        return showError(request, reply, client.provider, error, pageOf(login));
      }
      return redirect(reply, `${pageOf(login)}/upstream?${new URLSearchParams({ login: loginKey })}`);
    },
  );

  /** A response that no sign-in of this browser waits for. */
  async function lost(request: FastifyRequest, reply: FastifyReply, state: unknown): Promise<FastifyReply> {
    const found = typeof state === 'string' ? await findPurpose(db, state) : undefined;
    // A sign-in at the account page belongs to no app.
    if (found === undefined || found.interactionUid !== null)
      await signInTrace.refusedOf(request, found?.interactionUid ?? null, lostUpstream);
    return unfinished(reply);
  }

  return {
    providers: options.clients.map(({ provider }) => provider),

    async begin(request, reply, providerId, { interactionUid, accountId, hints, refused }) {
      const client = typeof providerId === 'string' ? clients.get(providerId) : undefined;
      if (client === undefined) return unfinished(reply);
      // Each sign-in stores a row, and no authentication is required to begin one.
      countAddress(limiter, 'begin ', request.ip);
      try {
        await client.prepare();
        const started = await startUpstreamLogin(db, {
          provider: client.provider.id,
          interactionUid,
          accountId,
          isFresh: hints.prompt.includes('login'),
          maxAgeSeconds: hints.maxAgeSeconds,
        });
        if (started === undefined) {
          refused?.(tooManySignIns);
          return sendPage(reply, 429, 'Too many attempts', tooManyContent);
        }
        const url = await client.authorizationUrl(started, hints);
        const cookie = `${cookieName(loginKeyOf(started.state))}=${started.browserSecret}; ${attributes}`;
        return redirect(reply.header('set-cookie', cookie), url.href);
      } catch (error) {
        if (error instanceof UpstreamError) refused?.(refusedByProvider(error, client.provider.name));
        return showError(request, reply, client.provider, error, pageOf({ interactionUid }));
      }
    },

    async waiting(request, reply, interactionUid) {
      const { login: loginKey } = request.query as Record<string, unknown>;
      const browserSecret = isLoginKey(loginKey) ? readSecret(request, loginKey) : undefined;
      const login =
        browserSecret === undefined ? undefined : await findVerifiedLogin(db, browserSecret, interactionUid);
      const provider = clients.get(login?.provider ?? '')?.provider;
      if (browserSecret !== undefined && login !== undefined && provider !== undefined) {
        return { browserSecret, login, provider };
      }
      unfinished(reply);
      return undefined;
    },
  };
}

function unfinished(reply: FastifyReply): FastifyReply {
  return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
}

function redirect(reply: FastifyReply, to: string): FastifyReply {
  return reply.headers({ 'cache-control': 'no-store', 'referrer-policy': 'no-referrer' }).redirect(to, 303);
}

/** The page that a sign-in began on. */
function pageOf({ interactionUid }: Pick<UpstreamLogin, 'interactionUid'>): string {
  return interactionUid === null ? '/account' : `/interaction/${interactionUid}`;
}

/** @throws `error` unless it is an `UpstreamError` */
function showError(
  request: FastifyRequest,
  reply: FastifyReply,
  provider: UpstreamProvider,
  error: unknown,
  back: string,
): FastifyReply {
  if (!(error instanceof UpstreamError)) throw error;
  request.log[error.code === 'cancelled' ? 'info' : 'warn'](
    { provider: provider.id, code: error.code, reason: reasonOf(error) },
    'sign-in with a provider failed',
  );
  if (error.code === 'throttled') reply.header('retry-after', String(error.retryAfterSeconds));
  const { status, title, content } = errorPage(error, provider.name, back, request.id);
  return sendPage(reply, status, title, content);
}

/** Maximum number of nested errors and maximum length of a logged reason. */
const causesMax = 5;
const reasonCharactersMax = 500;

/** Joins the messages of an error and its causes. Other members of the library's errors contain responses with tokens. */
function reasonOf(error: unknown): string {
  const messages: string[] = [];
  for (let each = error; each instanceof Error && messages.length < causesMax; each = each.cause) {
    messages.push(each.message);
    const { error_description: description } = each as { error_description?: unknown };
    if (typeof description === 'string') messages.push(JSON.stringify(description));
  }
  return messages.join(': ').slice(0, reasonCharactersMax);
}
