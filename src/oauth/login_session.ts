/**
 * The browser's login session outside of an authorization request: for the user's own page.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { passwordAcr } from './authentication_context.ts';
import { requestNormalizer } from './mount.ts';

export interface LoginSession {
  accountId: string | null;
  /** Known to this browser and to us: forms are bound to it. */
  secret: string;
}

export interface LoginSessions {
  find: (request: FastifyRequest, reply: FastifyReply) => Promise<LoginSession>;
  /** Signs the browser in, under a session id that nobody knew before. */
  begin: (request: FastifyRequest, reply: FastifyReply, login: NewLogin) => Promise<void>;
}

export interface NewLogin {
  accountId: string;
  /** Where the application signed the user in, what it says of that. */
  authTime?: number;
  amr?: string[] | null;
  acr?: string | null;
}

/** The engine's own model, as far as it is used here. */
interface EngineSession {
  jti: string;
  accountId?: string;
  authorizations?: Record<string, unknown>;
  sidFor: (clientId: string) => string | undefined;
  destroy: () => Promise<void>;
  loginAccount: (details: { accountId: string; loginTs?: number; amr?: string[]; acr?: string }) => void;
  resetIdentifier: () => void;
  save: (ttlSeconds: number) => Promise<string>;
}

interface EngineClient {
  backchannelLogoutUri?: string | undefined;
  backchannelLogout: (accountId: string | undefined, sessionId: string | undefined) => Promise<void>;
}

/** Seconds that a session lives from its last use. */
export const sessionSeconds = 14 * 86_400;

export function createLoginSessions(baseUrl: string, provider: () => Provider): LoginSessions {
  const options = { httpOnly: true, sameSite: 'lax', signed: true, path: '/' } as const;
  const normalize = requestNormalizer(baseUrl);
  const secure = baseUrl.startsWith('https:');

  async function load(request: FastifyRequest, reply: FastifyReply) {
    normalize(request);
    const engine = provider();
    const ctx = engine.createContext(request.raw, reply.raw);
    // The types of the engine do not list what its sessions can do; `EngineSession` says what is used here.
    const session = (await engine.Session.get(ctx as never)) as unknown as EngineSession;
    return { engine, ctx, session };
  }

  return {
    async find(request, reply) {
      const { session } = await load(request, reply);
      return { accountId: session.accountId ?? null, secret: session.jti };
    },
    async begin(request, reply, { accountId, authTime, amr, acr = passwordAcr(baseUrl) }) {
      const loaded = await load(request, reply);
      const { engine, ctx } = loaded;
      let { session } = loaded;
      if (session.accountId !== undefined && session.accountId !== accountId) {
        await endSession(engine, session);
        // As above.
        session = new engine.Session() as unknown as EngineSession;
      }
      session.loginAccount({
        accountId,
        ...(authTime === undefined ? {} : { loginTs: authTime }),
        ...(amr == null ? {} : { amr }),
        ...(acr === null ? {} : { acr }),
      });
      session.resetIdentifier();
      await session.save(sessionSeconds);
      ctx.cookies.set(engine.cookieName('session'), session.jti, {
        ...options,
        secure,
        maxAge: sessionSeconds * 1_000,
      });
    },
  };
}

/** Ends the session of another account as signing out does: the apps that want to be told are told. */
async function endSession(engine: Provider, session: EngineSession): Promise<void> {
  for (const clientId of Object.keys(session.authorizations ?? {})) {
    const client = (await engine.Client.find(clientId).catch(() => undefined)) as EngineClient | undefined;
    if (client?.backchannelLogoutUri === undefined) continue;
    await client.backchannelLogout(session.accountId, session.sidFor(clientId));
  }
  await session.destroy();
}
