/**
 * The bare loop, which everything else is a ratio of: one process that does nothing but sign and POST, from
 * memory, with no database. Faster than this nothing that sends by undici from one process can be.
 */

import { Pool } from 'undici';
import { monotonicMs } from './measure.ts';
import { connectionsMax, type Delivery, postSigned } from './signed_post.ts';

/** @returns deliveries a second. @throws Error when an answer is not 204 */
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
