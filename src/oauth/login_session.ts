/**
 * The browser's login session outside of authorization requests, for the `/account` pages.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { errors, type Provider } from 'oidc-provider';
import { Problem } from '../http/problem.ts';
import { passwordAcr } from './authentication_context.ts';
import { requestNormalizer } from './mount.ts';
import { withSignIn } from './storage/request_state.ts';

export interface LoginSession {
  accountId: string | null;
  /** Known only to this browser and the server. Forms are bound to it. */
  secret: string;
}

export interface LoginSessions {
  find: (request: FastifyRequest, reply: FastifyReply) => Promise<LoginSession>;
  /**
   * Signs the browser in, under a new session id.
   * @throws Problem 403 if the sessions of the account have been ended since the sign-in began
   */
  begin: (request: FastifyRequest, reply: FastifyReply, login: NewLogin) => Promise<void>;
}

export interface NewLogin {
  accountId: string;
  /** The account's epoch when the sign-in was verified. */
  signInEpoch: number;
  /** Authentication time, methods and class, if the application signed the user in. */
  authTime?: number;
  amr?: string[] | null;
  acr?: string | null;
}

/** The part of oidc-provider's `Session` model that is used here. */
interface ProviderSession {
  jti: string;
  accountId?: string;
  authorizations?: Record<string, unknown>;
  sidFor: (clientId: string) => string | undefined;
  destroy: () => Promise<void>;
  loginAccount: (details: { accountId: string; loginTs?: number; amr?: string[]; acr?: string }) => void;
  resetIdentifier: () => void;
  save: (ttlSeconds: number) => Promise<string>;
}

interface ProviderClient {
  backchannelLogoutUri?: string | undefined;
  backchannelLogout: (accountId: string | undefined, sessionId: string | undefined) => Promise<void>;
}

/** Lifetime of a session after its last use, in seconds. */
export const sessionSeconds = 14 * 86_400;

export function createLoginSessions(baseUrl: string, provider: () => Provider): LoginSessions {
  const options = { httpOnly: true, sameSite: 'lax', signed: true, path: '/' } as const;
  const normalize = requestNormalizer(baseUrl);
  const secure = baseUrl.startsWith('https:');

  async function load(request: FastifyRequest, reply: FastifyReply) {
    normalize(request);
    const current = provider();
    const ctx = current.createContext(request.raw, reply.raw);
    // oidc-provider's types omit these members of its sessions.
    const session = (await current.Session.get(ctx as never)) as unknown as ProviderSession;
    return { current, ctx, session };
  }

  return {
    async find(request, reply) {
      const { session } = await load(request, reply);
      return { accountId: session.accountId ?? null, secret: session.jti };
    },
    async begin(request, reply, { accountId, signInEpoch, authTime, amr, acr = passwordAcr(baseUrl) }) {
      const loaded = await load(request, reply);
      const { current, ctx } = loaded;
      let { session } = loaded;
      if (session.accountId !== undefined && session.accountId !== accountId) {
        await endSession(current, session);
        // oidc-provider's types omit these members, as above.
        session = new current.Session() as unknown as ProviderSession;
      }
      session.loginAccount({
        accountId,
        ...(authTime === undefined ? {} : { loginTs: authTime }),
        ...(amr == null ? {} : { amr }),
        ...(acr === null ? {} : { acr }),
      });
      session.resetIdentifier();
      await withSignIn({ accountId, signInEpoch }, () => session.save(sessionSeconds)).catch(
        rejectStaleSignIn,
      );
      ctx.cookies.set(current.cookieName('session'), session.jti, {
        ...options,
        secure,
        maxAge: sessionSeconds * 1_000,
      });
    },
  };
}

function rejectStaleSignIn(error: unknown): never {
  if (!(error instanceof errors.SessionNotFound)) throw error;
  throw new Problem(403, 'This sign-in is no longer valid. Sign in again.', { code: 'sign-in-ended' });
}

/** Signs the previous account out, including its back-channel logout notices. */
async function endSession(provider: Provider, session: ProviderSession): Promise<void> {
  for (const clientId of Object.keys(session.authorizations ?? {})) {
    const client = (await provider.Client.find(clientId).catch(() => undefined)) as
      | ProviderClient
      | undefined;
    if (client?.backchannelLogoutUri === undefined) continue;
    await client.backchannelLogout(session.accountId, session.sidFor(clientId));
  }
  await session.destroy();
}
