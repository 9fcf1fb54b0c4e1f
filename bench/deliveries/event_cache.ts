/**
 * `npx node bench/deliveries.ts event-cache`: the cost of the engine's cache of published events after a burst of
 * single events: the time to keep one more event, and of a full garbage collection with a full cache. Needs no
 * database.
 */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { EventCache } from '../../src/webhooks/fan_out/event_cache.ts';
import { packEvents } from '../../src/webhooks/fan_out/published_batch.ts';

const burst = 25_000;
const measured = 1_000;
const bodyBytes = 900;
/** Seconds by which the clock is advanced after the burst. */
const laterSeconds = 20;

export async function measureEventCache(): Promise<void> {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const cache = new EventCache();
  const publish = (position: number) => {
    cache.putPublished(oneEvent(position));
    cache.release([position]);
  };
  for (let position = 1; position <= burst; position += 1) publish(position);
  const now = performance.now.bind(performance);
  performance.now = () => now() + laterSeconds * 1_000;
  const startedAt = now();
  for (let position = burst + 1; position <= burst + measured; position += 1) publish(position);
  const putMicros = ((now() - startedAt) * 1_000) / measured;
  // The first collection removes the garbage of the burst.
  collect();
  const collectedAt = now();
  collect();
  console.log(
    `${putMicros.toFixed(1)} µs for each event, ${(now() - collectedAt).toFixed(1)} ms for a collection`,
  );
}

function oneEvent(position: number) {
  return packEvents([
    {
      id: `event-${position}`,
      accountId: 'account',
      kind: 'push',
      body: Buffer.alloc(bodyBytes, 'x'),
      day: '2026-11-22',
      position,
      createdAt: new Date(),
      version: null,
      traceparent: null,
      accountExternalId: null,
    },
  ]);
}
