/**
 * The bare loop, the reference for all ratios: one process that only signs and POSTs, from memory, without a
 * database. It is the upper limit for a single process that sends with undici.
 */

import { Pool } from 'undici';
import { monotonicMs } from './measure.ts';
import { connectionsMax, type Delivery, postSigned } from './signed_post.ts';

/** @returns deliveries a second. @throws Error when the status of a response is not 204 */
export async function runBareLoop(origin: string, deliveries: Delivery[]): Promise<number> {
  const pool = new Pool(origin, { connections: connectionsMax, pipelining: 1 });
  try {
    let next = 0;
    const loop = async () => {
      for (let delivery = deliveries[next++]; delivery !== undefined; delivery = deliveries[next++]) {
        const status = await postSigned(pool, delivery);
        if (status !== 204) throw new Error(`the subscriber answered ${status}`);
      }
    };
    const startedAt = monotonicMs();
    await Promise.all(Array.from({ length: connectionsMax }, loop));
    return (deliveries.length * 1000) / (monotonicMs() - startedAt);
  } finally {
    await pool.close();
  }
}
