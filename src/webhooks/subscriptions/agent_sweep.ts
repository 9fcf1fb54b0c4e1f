/** Ends agents' subscriptions that have expired, on each node. An expired one gets nothing before that either. */

import type { Database } from '../../database/database.ts';
import { endExpiredAgents } from './agent_subscription.ts';

const pauseMs = 30_000;

/** @returns stops it, after a sweep in progress */
export function startAgentSweep(db: Database, onError: (error: Error) => void): () => Promise<void> {
  let sweeping = Promise.resolve();
  let isStopped = false;
  const sweep = async () => {
    while (!isStopped && (await endExpiredAgents(db)) > 0);
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
