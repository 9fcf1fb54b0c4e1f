/**
 * Defers the statement that consumes a code or a refresh token until the rest of the token request is validated: client,
 * grant, account, proof, scope and resource. A rejected request consumes nothing, so the client can correct and repeat
 * it. The statement runs just before the access token is issued.
 *
 *   deferred while the request is validated → run once, as one conditional statement | dropped with a rejected request
 */

import { Provider } from 'oidc-provider';
import { existingRequestState, requestState } from './request_state.ts';

/** @param statement throws if another request consumed the code or token first */
export async function deferConsumption(statement: () => Promise<void>): Promise<void> {
  if (Provider.ctx === undefined) return statement();
  requestState().deferredConsumption = statement;
}

/** Runs the deferred statement, once. */
export async function runDeferredConsumption(): Promise<void> {
  const state = existingRequestState();
  const statement = state?.deferredConsumption;
  if (state === undefined || statement === undefined) return;
  delete state.deferredConsumption;
  await statement();
}
