/** Orders. Each order commits together with its event. */

import type { Pool } from 'pg';
import type { User } from './users.ts';

export async function placeOrder(pool: Pool, user: User, item: string): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query('begin');
    const { rows } = await client.query(
      'insert into shop.orders (user_id, item) values ($1, $2) returning id',
      [user.id, item],
    );
    const body = JSON.stringify({ order: { id: rows[0].id, item } });
    await client.query('select nuncio.publish($1, $2, $3)', ['order.placed', user.id, body]);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw error;
  } finally {
    client.release();
  }
}
