/**
 * NUNCIO_NODE_NAME: one running node has each name. A node that starts waits until its predecessor is known to be dead, and then
 * takes its place. It does not start beside a running one.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { silentNodeAfterMs } from '../../grants/delivery_hold.ts';
import { isGone, removeDeadNodes } from './node.ts';

/** Milliseconds between reads of the other node's heartbeat counter, which grows once a second. */
const readPauseMs = 250;

/** Another running node has the name. */
class NodeNameError extends Error {
  override readonly name = 'NodeNameError';
}

/**
 * Removes the node that has the name. Waits first until its heartbeat counter has stood still for so long that it starts nothing.
 * A node of this machine whose process is gone is removed at once.
 * @throws NodeNameError if it is running
 */
export async function takeNodeName(db: Database, name: string | null): Promise<void> {
  if (name === null) return;
  const read = async () =>
    (
      await sql<{ id: string; host: string; process: string; heartbeats: string }>`
        select id, host, process, heartbeats from nodes where name = ${name}`.execute(db)
    ).rows[0];
  const first = await read();
  if (first === undefined) return;
  const since = performance.now();
  while (!isGone(first) && performance.now() - since < silentNodeAfterMs) {
    await sleep(readPauseMs);
    const now = await read();
    if (now === undefined) return;
    if (now.id === first.id && now.heartbeats === first.heartbeats) continue;
    const [host] = now.host.split(' ');
    throw new NodeNameError(
      `NUNCIO_NODE_NAME is "${name}": a node of this name is running on ${host} (process ${now.process.split(' ')[0]}), its last heartbeat was less than a second ago; give each node a name of its own`,
    );
  }
  await removeDeadNodes(db, [first]);
}
