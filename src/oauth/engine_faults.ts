/**
 * What the engine calls an error of the server and is not one: a database that is away for a moment, and input that
 * is nested so deep that it cannot be worked on.
 */

import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { isDatabaseUnavailable } from '../database/database.ts';

/** Seconds after which to ask again, as everywhere else in the house. */
const retryAfterSeconds = 5;

export function useFaults(provider: Provider): void {
  provider.on('server_error', (ctx: KoaContextWithOIDC, error: Error) => {
    if (isDatabaseUnavailable(error)) answerUnavailable(ctx);
    else if (error instanceof RangeError && /call stack/.test(error.message)) {
      answer(ctx, 400, 'invalid_request', 'the request is nested too deep');
    }
  });
}

/** RFC 6749 section 4.1.2.1 has the word, RFC 9110 section 15.6.4 the status. */
export function answerUnavailable(ctx: KoaContextWithOIDC): void {
  ctx.set('retry-after', String(retryAfterSeconds));
  ctx.set('cache-control', 'no-store');
  answer(ctx, 503, 'temporarily_unavailable', 'the database cannot be reached at the moment');
}

/** A page stays what it is, under another status. */
function answer(ctx: KoaContextWithOIDC, status: number, error: string, description: string): void {
  const { body } = ctx;
  ctx.status = status;
  if (typeof body !== 'string') ctx.body = { error, error_description: description };
}
