/**
 * Publishes what waits in the store: at once after a change, and again after a while where that failed.
 *
 *   waiting → published → forgotten
 *           ↘ refused, and kept with the reason
 */

import { type NewEvent, PublishError, type Publisher } from '../../src/protect/protect.ts';
import type { Store } from './store.ts';

/** Events of one batch, and milliseconds until the next look where nothing was said. */
const batchMax = 500;
const lookMs = 5_000;

export interface Outgoing {
  /** Says that there are events. Returns at once. */
  wake(): void;
  /** Ends after what is on its way. */
  stop(): Promise<void>;
}

export function startOutgoing(store: Store, publisher: Publisher, log: (line: string) => void): Outgoing {
  let round: Promise<void> | undefined;
  let isWanted = false;
  let isStopped = false;

  function wake(): void {
    if (isStopped) return;
    isWanted = true;
    round ??= run().finally(() => {
      round = undefined;
      if (isWanted) wake();
    });
  }

  async function run(): Promise<void> {
    while (isWanted && !isStopped) {
      isWanted = false;
      const events = store.waitingEvents(batchMax);
      if (events.length === 0) return;
      try {
        await publish(events);
        isWanted = true;
      } catch (error) {
        // They stay where they are until the next look.
        isWanted = false;
        log(`events wait: ${(error as Error).message}`);
        return;
      }
    }
  }

  async function publish(events: NewEvent[]): Promise<void> {
    try {
      store.forgetEvents(await publisher.publish(events));
    } catch (error) {
      if (!(error instanceof PublishError) || error.status !== 422) throw error;
      // One of them will never be taken (an account that is gone, say); the others are not to wait for it.
      const [event, ...rest] = events;
      if (rest.length > 0) for (const each of events) await publish([each]);
      else store.refuseEvent(event?.id as string, error.message);
    }
  }

  const timer = setInterval(wake, lookMs);
  wake();
  return {
    wake,
    async stop() {
      isStopped = true;
      clearInterval(timer);
      await round;
    },
  };
}
