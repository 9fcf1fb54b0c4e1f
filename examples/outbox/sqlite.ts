/** The same in SQLite, with `node:sqlite`. `better-sqlite3` works in the same way. */

import { DatabaseSync } from 'node:sqlite';
import { sqliteOutbox } from '../../src/outbox/outbox.ts';
import type { Order } from './postgres.ts';

export async function openShop(file: string) {
  const database = new DatabaseSync(file);
  const outbox = sqliteOutbox({ database });
  await outbox.setUp();

  function placeOrder({ id, customer, cents }: Order): void {
    database.exec('begin immediate');
    try {
      database.prepare('insert into orders (id, customer, cents) values (?, ?, ?)').run(id, customer, cents);
      outbox.append(database, {
        kind: 'invoice.paid',
        account: { external_id: customer },
        body: { invoice: { id, amount: cents, currency: 'EUR' } },
      });
      database.exec('commit');
    } catch (error) {
      database.exec('rollback');
      throw error;
    }
  }

  return { database, outbox, placeOrder };
}
