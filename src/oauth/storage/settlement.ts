/**
 * What a token request uses up (a code, a refresh token) is put off until everything else about the request is judged:
 * client, grant, account, proof, scope and resource. So a refused request uses nothing up, and the same request put
 * right works. The statement runs just before the access token is made.
 *
 *   postponed, while the request is judged → settled by one conditional statement | dropped with the refused request
 */

import { Provider } from 'oidc-provider';
import { currentMemo, knownMemo } from './memo.ts';

/** @param statement throws where another request was first */
export async function postpone(statement: () => Promise<void>): Promise<void> {
  if (Provider.ctx === undefined) return statement();
  currentMemo().postponed = statement;
}

/** Runs what was put off, once. */
export async function settle(): Promise<void> {
  const memo = knownMemo();
  const statement = memo?.postponed;
  if (memo === undefined || statement === undefined) return;
  delete memo.postponed;
  await statement();
}
