/**
 * Corrects two errors that oidc-provider reports as `server_error`: an unreachable or busy database, and input that is nested too deeply.
 */

import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { isDatabaseUnavailable, isLockFailure } from '../database/database.ts';
import { ConnectionShareError } from '../database/fair_pool.ts';

/** `Retry-After` in seconds, as in the rest of the API. */
const retryAfterSeconds = 5;

export function useErrorResponses(provider: Provider): void {
  provider.on('server_error', (ctx: KoaContextWithOIDC, error: Error) => {
    if (isTemporary(error)) respondUnavailable(ctx);
    else if (error instanceof RangeError && /call stack/.test(error.message)) {
      respond(ctx, 400, 'invalid_request', 'the request is nested too deeply');
    }
  });
}

/** Whether the client should try again: the database is unreachable, or other requests use what this one waits for. */
export function isTemporary(error: unknown): boolean {
  return isDatabaseUnavailable(error) || isLockFailure(error) || error instanceof ConnectionShareError;
}

/** RFC 6749 section 4.1.2.1 defines the code, RFC 9110 section 15.6.4 the status. */
export function respondUnavailable(ctx: KoaContextWithOIDC): void {
  ctx.set('retry-after', String(retryAfterSeconds));
  ctx.set('cache-control', 'no-store');
  respond(ctx, 503, 'temporarily_unavailable', 'the database is unreachable or busy');
}

/** An HTML page keeps its body and gets the status only. */
function respond(ctx: KoaContextWithOIDC, status: number, error: string, description: string): void {
  const { body } = ctx;
  ctx.status = status;
  if (typeof body !== 'string') ctx.body = { error, error_description: description };
}
