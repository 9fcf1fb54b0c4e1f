/**
 * Ends agents' subscriptions that have expired or whose kind was removed, on each node. An expired one gets nothing before that
 * either.
 */

import type { Database } from '../../database/database.ts';
import { endExpiredAgents } from './agent_subscription.ts';
import { declareKinds, endRemovedKinds } from './removed_kinds.ts';

const pauseMs = 30_000;

/** @param kinds the names of the node's kinds @returns stops it, after a sweep in progress */
export function startAgentSweep(
  db: Database,
  kinds: readonly string[],
  onError: (error: Error) => void,
): () => Promise<void> {
  let sweeping = declareKinds(db, kinds).catch(onError);
  let isStopped = false;
  const sweep = async () => {
    await declareKinds(db, kinds);
    while (!isStopped && (await endExpiredAgents(db)) > 0);
    while (!isStopped && (await endRemovedKinds(db)) > 0);
  };
  const timer = setInterval(() => {
    sweeping = sweeping.then(sweep).catch(onError);
  }, pauseMs);
  timer.unref();
  return async () => {
    isStopped = true;
    clearInterval(timer);
    await sweeping;
  };
}
