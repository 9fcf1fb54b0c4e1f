/**
 * Binds the answer to an interaction to the browser that gave it. The engine's own cookies name the interaction alone:
 * an attacker who begins one can plant them in the victim's browser (a sibling host may set `__Secure-` cookies, over
 * http any port may set any), let the victim sign in, and resume the request himself.
 *
 *   answered: a fresh secret → its digest with the result, the secret in a cookie → demanded when the request is resumed
 *
 * Over https the cookie has the prefix `__Host-`: nobody else can set it either, so an attacker's answer is not resumed
 * in the victim's browser.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { type KoaContextWithOIDC, Provider } from 'oidc-provider';
import { digest, digestEquals, newSecret } from '../crypto/digest.ts';

type Result = Parameters<Provider['interactionResult']>[2];

/** Seconds from an answer until it must be resumed: browsers do that at once. */
const answerSeconds = 600;
/** Characters of the digest in the cookie's name: two answers at once get two cookies. */
const nameLength = 16;

export type AnswerInteraction = (
  request: FastifyRequest,
  reply: FastifyReply,
  result: Result,
) => Promise<string>;

/** @returns a function that keeps the answer, and returns the URL to resume the request at */
export function createAnswers(baseUrl: string, provider: () => Provider): AnswerInteraction {
  const isSecure = baseUrl.startsWith('https:');
  const attributes = `Path=/; HttpOnly; SameSite=Lax; Max-Age=${answerSeconds}${isSecure ? '; Secure' : ''}`;
  return async (request, reply, result) => {
    const secret = newSecret();
    const answer = digest(secret).toString('base64url');
    const returnTo = await provider().interactionResult(request.raw, reply.raw, {
      ...result,
      answer,
      // In each answer: the engine keeps the members of the one before.
      acted: request.method === 'POST',
    });
    reply.header('set-cookie', `${cookieName(answer, isSecure)}=${secret}; ${attributes}`);
    return returnTo;
  };
}

function cookieName(answer: string, isSecure: boolean): string {
  return `${isSecure ? '__Host-' : ''}nuncio_answer_${answer.slice(0, nameLength)}`;
}

/** The engine's own model, as far as it is used here. */
interface EngineInteraction {
  result?: { answer?: unknown };
  destroy: () => Promise<void>;
}

/** Whether the user sent a form of ours for the last answer. A redirect through the application's page is no act. */
export function isAct(interaction: { result?: object | undefined } | undefined): boolean {
  return (interaction?.result as { acted?: unknown } | undefined)?.acted === true;
}

/** Lets the engine find an interaction to resume only for the browser that answered it. */
export function useInteractionBinding({ Interaction }: Provider, baseUrl: string): void {
  const isSecure = baseUrl.startsWith('https:');
  const model = Interaction as unknown as {
    find: (uid: string, ...rest: unknown[]) => Promise<EngineInteraction | undefined>;
    prototype: EngineInteraction;
  };
  const { find } = model;
  const { destroy } = model.prototype;

  model.find = async function (uid, ...rest) {
    const interaction = await find.call(this, uid, ...rest);
    const ctx = resumed();
    return ctx === undefined || isOwnAnswer(ctx, interaction) ? interaction : undefined;
  };

  // Not sooner: where another account signs in, the engine signs the one before out and comes back.
  model.prototype.destroy = async function () {
    await destroy.call(this);
    const answer = answerOf(this);
    if (answer === undefined) return;
    const options = { path: '/', httpOnly: true, sameSite: 'lax', secure: isSecure, signed: false } as const;
    resumed()?.cookies.set(cookieName(answer, isSecure), null, options);
  };

  function isOwnAnswer(ctx: KoaContextWithOIDC, interaction: EngineInteraction | undefined): boolean {
    const answer = answerOf(interaction);
    if (answer === undefined) return false;
    const secret = ctx.cookies.get(cookieName(answer, isSecure), { signed: false }) ?? '';
    return digestEquals(digest(secret), digestOf(answer));
  }
}

function answerOf(interaction: EngineInteraction | undefined): string | undefined {
  const answer = interaction?.result?.answer;
  return typeof answer === 'string' && digestOf(answer).length === 32 ? answer : undefined;
}

function digestOf(answer: string): Buffer {
  return Buffer.from(answer, 'base64url');
}

/** The request that resumes one, where there is one under way. */
function resumed(): KoaContextWithOIDC | undefined {
  const ctx = Provider.ctx;
  return ctx?.oidc.route === 'resume' || ctx?.oidc.route === 'device_resume' ? ctx : undefined;
}
