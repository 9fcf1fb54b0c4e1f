/** The engine's connections to the database. */

import { type Database, type DatabaseOptions, openDatabase } from '../../database/database.ts';
import { sessionSettings } from './session_settings.ts';

/** Milliseconds that long work waits for other long work. A statement takes at most a minute. */
const slowWaitMs = 120_000;
/**
 * Milliseconds that the leader of the fan-out waits for a result. The database cancels its statements after 4 s. So a connection without
 * a result is frozen, and the deliveries of all wait for it.
 */
const leaderResultMs = 6_000;
/** The same for statements on the connections that lanes share: the deliveries of many wait for each kind of them. */
const statementMs = 20_000;
const resultMs = statementMs + 2_000;

export interface EngineDatabases {
  /** For all statements but those of the others. */
  db: Database;
  /** A connection to lead the fan-out on. It closes soon if no result arrives. */
  leaderDb: Database;
  /** A connection for long work, so that it never takes one from the deliveries. Waits at most a second for a lock. */
  slowDb: Database;
}

type ConnectionEvents = Required<Pick<DatabaseOptions, 'onIdleError' | 'onConnect'>>;

export function openEngineDatabases(
  url: string,
  connectionsMax: number,
  events: ConnectionEvents,
): EngineDatabases {
  const open = (options: Partial<DatabaseOptions>) =>
    openDatabase({
      connectionString: url,
      connectionsMax: 1,
      settings: sessionSettings,
      ...events,
      ...options,
    });
  return {
    db: open({
      connectionsMax: connectionsMax - 2,
      statementTimeoutMs: statementMs,
      resultTimeoutMs: resultMs,
    }),
    leaderDb: open({ resultTimeoutMs: leaderResultMs }),
    slowDb: open({
      settings: { ...sessionSettings, lock_timeout: '1s' },
      connectionTimeoutMs: slowWaitMs,
    }),
  };
}
