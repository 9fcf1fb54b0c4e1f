/**
 * Orders in a PostgreSQL database separate from Nuncio's: the code of docs/outbox.md.
 *
 * In your project, import from 'nuncio/outbox' and 'nuncio/protect'.
 */

import pg from 'pg';
import { createRelay, type Outbox, postgresOutbox, type Relay } from '../../src/outbox/outbox.ts';
import { createPublisher } from '../../src/protect/protect.ts';

export interface Order {
  id: string;
  customer: string;
  cents: number;
}

export async function openShop(connectionString: string) {
  const pool = new pg.Pool({ connectionString });
  pool.on('error', (error) => console.error(`an idle connection ended: ${error}`));
  const outbox = postgresOutbox({ pool });
  await outbox.setUp();

  async function placeOrder(order: Order): Promise<void> {
    const client = await pool.connect();
    try {
      await client.query('begin');
      await client.query('insert into orders (id, customer, cents) values ($1, $2, $3)', [
        order.id,
        order.customer,
        order.cents,
      ]);
      await outbox.append(client, {
        kind: 'invoice.paid',
        account: { external_id: order.customer }, // your own user id; an account's id is a text
        body: { invoice: { id: order.id, amount: order.cents, currency: 'EUR' } },
      });
      await client.query('commit');
    } catch (error) {
      await client.query('rollback');
      throw error;
    } finally {
      client.release();
    }
  }

  return { pool, outbox, placeOrder };
}

export function startRelay(store: Outbox, issuer: string, clientId: string, clientSecret: string): Relay {
  const relay = createRelay({
    store,
    publisher: createPublisher({ issuer, clientId, clientSecret }),
    onRejected: ({ id, kind, reason }) => console.error(`${kind} ${id} was rejected: ${reason}`),
    onError: (error, { retryInMs }) => console.error(`events wait ${retryInMs} ms: ${error}`),
  });
  relay.start();
  return relay;
}

/** Lists the rejected events and retries all of them, after the schema of a kind was corrected. */
export async function mend(outbox: Outbox): Promise<void> {
  for (const { id, kind, reason } of await outbox.rejected.list()) console.error(id, kind, reason);
  await outbox.rejected.retryAll();
}

/** Retries one rejected event with a corrected body. */
export async function mendOne(outbox: Outbox, id: string, body: unknown): Promise<void> {
  const isRetried = await outbox.rejected.retry(id, { body });
  if (!isRetried) await outbox.rejected.discard(id);
}
