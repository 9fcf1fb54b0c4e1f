/**
 * Few connections that many requests share: a statement is sent at once, behind those that are still under way on the
 * same connection (pipelining). For short statements of the hottest requests: a connection of the pool sleeps between
 * two statements, and waking its process up costs both sides more than the statement does.
 *
 * What is sent behind another waits for it: only for statements that wait for nobody, and never for a transaction.
 */

import { Kysely, PostgresDialect, type PostgresPool, type PostgresPoolClient } from 'kysely';
import {
  clientOptions,
  type Database,
  type DatabaseOptions,
  PreparingClient,
  type Tables,
} from './database.ts';

/** Statements on one connection before another one is opened, or taken into use again. */
const underWayMax = 16;

interface Shared {
  client: PreparingClient & PostgresPoolClient;
  connected: Promise<unknown>;
  /** Statements of it that have not been answered. */
  underWay: number;
}

/**
 * Opens lazily, like a pool. Close it with `db.destroy()`.
 * @param options `connectionsMax` is a small number: past `underWayMax` on each, statements wait behind each other
 */
export function openPipeline(options: DatabaseOptions): Database {
  const shared: Shared[] = [];

  function open(): Shared {
    // As below: the overloads of the driver’s `query` are not those that Kysely lists.
    const client = Object.assign(new SharedClient({ ...clientOptions(options), pipeline: true }), {
      release: () => {
        one.underWay -= 1;
      },
    }) as unknown as Shared['client'];
    const one: Shared = { client, connected: client.connect(), underWay: 0 };
    const forget = () => {
      const index = shared.indexOf(one);
      if (index >= 0) shared.splice(index, 1);
    };
    // Whose statements were under way hears of it; who comes next gets another connection.
    client.on('error', (error) => {
      if (one.underWay === 0) options.onIdleError?.(error);
      forget();
    });
    client.on('end', forget);
    one.connected.catch(forget);
    shared.push(one);
    return one;
  }

  /** The first that has room, so that as few as possible are used; else the one with the least before it. */
  function choose(): Shared {
    const free = shared.find((one) => one.underWay < underWayMax);
    if (free !== undefined) return free;
    if (shared.length < options.connectionsMax) return open();
    return shared.reduce((best, one) => (one.underWay < best.underWay ? one : best));
  }

  const pool = {
    async connect() {
      const one = choose();
      one.underWay += 1;
      try {
        await one.connected;
      } catch (error) {
        one.underWay -= 1;
        throw error;
      }
      return one.client;
    },
    async end() {
      await Promise.all(shared.splice(0).map(({ client }) => client.end()));
    },
  };
  // Kysely’s type of a client lists overloads that it never calls; what it calls is here.
  return new Kysely<Tables>({ dialect: new PostgresDialect({ pool: pool as unknown as PostgresPool }) });
}

class SharedClient extends PreparingClient {
  // biome-ignore lint/suspicious/noExplicitAny: the overloads of pg's own query are passed through unchanged
  override query(...parameters: any[]): any {
    const [text] = parameters;
    if (typeof text === 'string' && /^(begin|start transaction)\b/.test(text)) {
      throw new Error('a transaction needs a connection of its own');
    }
    return super.query(...parameters);
  }
}
