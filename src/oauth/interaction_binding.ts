/**
 * Binds the result of an interaction to the browser that submitted it.
 *
 * oidc-provider's own cookies identify only the interaction. An attacker who starts an interaction can plant those cookies in the
 * victim's browser (a sibling host may set `__Secure-` cookies; over http, any port may set any cookie), let the victim sign in,
 * and resume the request himself. Therefore each result gets a fresh secret. The result stores its digest, the browser gets the
 * secret as a cookie, and resuming the request requires that cookie.
 *
 * Over https the cookie has the prefix `__Host-`. No other host can set it, so an attacker's result cannot be resumed in
 * the victim's browser either.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { type KoaContextWithOIDC, Provider } from 'oidc-provider';
import { digest, digestEquals, newSecret } from '../crypto/digest.ts';
import { refuseLostRedirect } from './resumed_redirect.ts';
import type { ModelStorage } from './storage/storage.ts';

type Result = Parameters<Provider['interactionResult']>[2];

/** Lifetime of the cookie in seconds. Browsers resume immediately. */
const resultSeconds = 600;
/** Number of characters of the digest in the cookie name. Concurrent results get different cookies. */
const nameLength = 16;

export type SubmitInteraction = (
  request: FastifyRequest,
  reply: FastifyReply,
  result: Result,
) => Promise<string>;

/** @returns a function that stores the result of an interaction and returns the URL that resumes the request */
export function createInteractionSubmitter(baseUrl: string, provider: () => Provider): SubmitInteraction {
  const isSecure = baseUrl.startsWith('https:');
  const attributes = `Path=/; HttpOnly; SameSite=Lax; Max-Age=${resultSeconds}${isSecure ? '; Secure' : ''}`;
  return async (request, reply, result) => {
    const secret = newSecret();
    const resultId = digest(secret).toString('base64url');
    const returnTo = await provider().interactionResult(request.raw, reply.raw, {
      ...result,
      resultId,
      // Set on every result: oidc-provider merges a result with the previous one.
      acted: request.method === 'POST',
    });
    reply.header('set-cookie', `${cookieName(resultId, isSecure)}=${secret}; ${attributes}`);
    return returnTo;
  };
}

function cookieName(resultId: string, isSecure: boolean): string {
  return `${isSecure ? '__Host-' : ''}nuncio_result_${resultId.slice(0, nameLength)}`;
}

interface Submitted {
  result?: object | undefined;
}

/** Whether the latest result came from a form submission. A redirect through the application's page does not count. */
export function isUserAction(interaction: Submitted | undefined): boolean {
  return (interaction?.result as { acted?: unknown } | undefined)?.acted === true;
}

/** Returns an interaction to a request that resumes it only in the browser that submitted its result. */
export function bindInteractions(storage: ModelStorage, baseUrl: string): ModelStorage {
  const isSecure = baseUrl.startsWith('https:');
  return {
    ...storage,
    async find(uid) {
      const interaction = await storage.find?.(uid);
      const ctx = resumingContext();
      if (!interaction || ctx === undefined) return interaction;
      if (!wasSubmittedHere(ctx, interaction)) return undefined;
      await refuseLostRedirect(ctx, interaction);
      return interaction;
    },
    // The cookie is cleared only here: when a different account signs in, oidc-provider signs the previous one out and
    // resumes again.
    async destroy(uid) {
      await storage.destroy?.(uid);
      const ctx = resumingContext();
      const resultId = resultIdOf(ctx?.oidc.entities.Interaction);
      if (resultId === undefined) return;
      const options = {
        path: '/',
        httpOnly: true,
        sameSite: 'lax',
        secure: isSecure,
        signed: false,
      } as const;
      ctx?.cookies.set(cookieName(resultId, isSecure), null, options);
    },
  };

  function wasSubmittedHere(ctx: KoaContextWithOIDC, interaction: Submitted): boolean {
    const resultId = resultIdOf(interaction);
    if (resultId === undefined) return false;
    const secret = ctx.cookies.get(cookieName(resultId, isSecure), { signed: false }) ?? '';
    return digestEquals(digest(secret), toDigest(resultId));
  }
}

function resultIdOf(interaction: Submitted | undefined): string | undefined {
  // The digest of the secret in the browser's cookie.
  const { resultId } = (interaction?.result ?? {}) as { resultId?: unknown };
  return typeof resultId === 'string' && toDigest(resultId).length === 32 ? resultId : undefined;
}

function toDigest(resultId: string): Buffer {
  return Buffer.from(resultId, 'base64url');
}

/** The context of the current request if it resumes an interaction. */
function resumingContext(): KoaContextWithOIDC | undefined {
  const ctx = Provider.ctx;
  return ctx?.oidc.route === 'resume' || ctx?.oidc.route === 'device_resume' ? ctx : undefined;
}
