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

/** The part of oidc-provider's `Interaction` model that is used here. */
interface ProviderInteraction {
  /** The digest of the secret in the browser's cookie. */
  result?: { resultId?: unknown };
  destroy: () => Promise<void>;
}

/** Whether the latest result came from a form submission. A redirect through the application's page does not count. */
export function isUserAction(interaction: { result?: object | undefined } | undefined): boolean {
  return (interaction?.result as { acted?: unknown } | undefined)?.acted === true;
}

/** Makes oidc-provider resume an interaction only in the browser that submitted its result. */
export function useInteractionBinding({ Interaction }: Provider, baseUrl: string): void {
  const isSecure = baseUrl.startsWith('https:');
  // oidc-provider's type omits the parameters of `find` and the stored members.
  const model = Interaction as unknown as {
    find: (uid: string, ...rest: unknown[]) => Promise<ProviderInteraction | undefined>;
    prototype: ProviderInteraction;
  };
  const { find } = model;
  const { destroy } = model.prototype;

  model.find = async function (uid, ...rest) {
    const interaction = await find.call(this, uid, ...rest);
    const ctx = resumingContext();
    return ctx === undefined || wasSubmittedHere(ctx, interaction) ? interaction : undefined;
  };

  // The cookie is cleared only here: when a different account signs in, oidc-provider signs the previous one out and
  // resumes again.
  model.prototype.destroy = async function () {
    await destroy.call(this);
    const resultId = resultIdOf(this);
    if (resultId === undefined) return;
    const options = { path: '/', httpOnly: true, sameSite: 'lax', secure: isSecure, signed: false } as const;
    resumingContext()?.cookies.set(cookieName(resultId, isSecure), null, options);
  };

  function wasSubmittedHere(ctx: KoaContextWithOIDC, interaction: ProviderInteraction | undefined): boolean {
    const resultId = resultIdOf(interaction);
    if (resultId === undefined) return false;
    const secret = ctx.cookies.get(cookieName(resultId, isSecure), { signed: false }) ?? '';
    return digestEquals(digest(secret), toDigest(resultId));
  }
}

function resultIdOf(interaction: ProviderInteraction | undefined): string | undefined {
  const resultId = interaction?.result?.resultId;
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
