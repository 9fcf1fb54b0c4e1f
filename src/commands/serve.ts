/** Runs a node until a signal stops it: the common part of `nuncio dev` and `nuncio start`. */

import type { Logger } from 'pino';
import { shortenCollectionPauses } from '../garbage_collection.ts';
import type { Platform } from '../platform.ts';
import { loadCommandPlatform } from './command_platform.ts';
import { type NodeOptions, type RunningNode, startNode } from './node.ts';

/** Maximum seconds for a stop. Longer than the timeouts of delivery attempts (15 s) and of database queries. */
const stopSecondsMax = 30;

const stopSignals = ['SIGTERM', 'SIGINT'] as const;

export interface ServeOptions extends Omit<NodeOptions, 'platform' | 'collectsGarbage'> {
  /** Runs once the server is listening. */
  ready: (node: RunningNode, platform: Platform) => void;
}

/** Serves until a signal arrives. */
export async function serve(options: ServeOptions): Promise<void> {
  const { logger } = options;
  // First, so that a signal during start-up also causes a clean stop.
  const signals = listenToSignals(logger);
  try {
    await serveUntil(signals.first, options);
  } finally {
    signals.release();
  }
  logger.info('stopped');
}

async function serveUntil(stopped: Promise<NodeJS.Signals>, options: ServeOptions): Promise<void> {
  const { config, logger, ready, ...rest } = options;
  const platform = await loadCommandPlatform(config);
  shortenCollectionPauses();
  const node = await startNode({ ...rest, config, logger, platform, collectsGarbage: true });
  try {
    ready(node, platform);
    logger.info({ signal: await stopped }, 'stopping');
  } finally {
    exitAfterTimeout(node, logger);
    await node.close();
  }
}

/**
 * Ends the process if the stop takes too long, for example because of a database outage. Nothing is lost: another node
 * repeats what was not recorded.
 */
function exitAfterTimeout(node: RunningNode, logger: Logger): void {
  setTimeout(() => {
    logger.error({ seconds: stopSecondsMax, waiting_for: node.waitingFor }, 'stop timed out, exiting');
    process.exit(1);
  }, stopSecondsMax * 1_000).unref();
}

/** The first signal requests a clean stop, the second one of the same kind ends the process immediately. */
function listenToSignals(logger: Logger): { first: Promise<NodeJS.Signals>; release: () => void } {
  const { promise: first, resolve } = Promise.withResolvers<NodeJS.Signals>();
  const received = new Set<NodeJS.Signals>();
  const receive = (signal: NodeJS.Signals) => {
    if (received.has(signal)) {
      logger.warn('exiting immediately after a second signal');
      process.exit(1);
    }
    received.add(signal);
    resolve(signal);
  };
  for (const signal of stopSignals) process.on(signal, receive);
  return {
    first,
    release: () => {
      for (const signal of stopSignals) process.removeListener(signal, receive);
    },
  };
}
