/** PostgreSQL's own settings: those that lose data, and those that make a server slow, each with its reason. */

import { sql } from 'kysely';
import { findConnectionShortage } from '../database/connections.ts';
import type { Database } from '../database/database.ts';
import { type Check, check, type Probe, type State } from './report.ts';

interface Rule {
  state: State;
  /** Whether a value is wrong. Numbers are in the unit of `pg_settings`. */
  isWrong: (value: string) => boolean;
  /** Follows the name and the value. */
  reason: string;
  advice: string;
}

const isOff = (value: string) => value === 'off';
const mib = 1_048_576;

/** By name. Sizes in `pg_settings` have units of 8 KiB or MiB, which the query converts to bytes. */
const rules: Readonly<Record<string, Rule>> = {
  fsync: {
    state: 'error',
    isWrong: isOff,
    reason: 'a power failure destroys the database',
    advice: 'Set fsync = on.',
  },
  full_page_writes: {
    state: 'error',
    isWrong: isOff,
    reason: 'a power failure can destroy pages, unless the file system writes 8 KiB atomically',
    advice: 'Set full_page_writes = on.',
  },
  synchronous_commit: {
    state: 'warning',
    isWrong: (value) => isOff(value),
    reason:
      'a crash loses the last moments: withdrawals of grants, used codes and rotated refresh tokens among them',
    advice: 'Set synchronous_commit = on.',
  },
  autovacuum: {
    state: 'error',
    isWrong: isOff,
    reason: 'dead rows are never removed, and the database stops when transaction ids run out',
    advice: 'Set autovacuum = on.',
  },
  track_counts: {
    state: 'error',
    isWrong: isOff,
    reason: 'autovacuum does not know what to do',
    advice: 'Set track_counts = on.',
  },
  default_transaction_isolation: {
    state: 'warning',
    isWrong: (value) => value !== 'read committed',
    reason: 'the server is written for read committed, and other levels make transactions fail',
    advice: `Set it to 'read committed' for the database user: alter role … set default_transaction_isolation = 'read committed'.`,
  },
  shared_buffers: {
    state: 'notice',
    isWrong: (value) => Number(value) < 128 * mib,
    reason: 'reads go to the disk that could come from memory',
    advice: 'Set shared_buffers to a quarter of the memory of the database machine.',
  },
  max_wal_size: {
    state: 'notice',
    isWrong: (value) => Number(value) < 1_024 * mib,
    reason: 'frequent checkpoints make commits, and with them deliveries, slow',
    advice: 'Set max_wal_size to 2GB or more.',
  },
  random_page_cost: {
    state: 'notice',
    isWrong: (value) => Number(value) > 2,
    reason: 'with the value for rotating disks, the planner avoids indexes',
    advice: 'On SSDs, set random_page_cost = 1.1.',
  },
  data_checksums: {
    state: 'notice',
    isWrong: isOff,
    reason: 'damage by the disk stays unnoticed',
    advice: 'Enable checksums with pg_checksums, while PostgreSQL is stopped.',
  },
};

export function postgresSettingsProbes(db: Database, connections: number): readonly Probe[] {
  return [
    { name: 'database.settings', run: () => checkSettings(db) },
    { name: 'database.connections', run: () => checkConnections(db, connections) },
  ];
}

async function checkSettings(db: Database): Promise<Check[]> {
  const { rows } = await sql<{ name: string; value: string; shown: string }>`
    select name, current_setting(name) as shown,
      case unit when '8kB' then (setting::numeric * 8192)::text when 'MB' then (setting::numeric * 1048576)::text
        else setting end as value
    from pg_settings where name = any(${Object.keys(rules)}::text[]) order by name`.execute(db);
  const wrong = rows.flatMap(({ name, value, shown }) => {
    const rule = rules[name];
    if (rule === undefined || !rule.isWrong(value)) return [];
    return [
      check(`database.${name}`, rule.state, `${name} is ${shown}: ${rule.reason}`, rule.advice, {
        value: shown,
      }),
    ];
  });
  if (wrong.length > 0) return wrong;
  return [check('database.settings', 'ok', `${rows.length} settings of PostgreSQL are as they should be`)];
}

async function checkConnections(db: Database, connections: number): Promise<Check> {
  const { rows } = await sql<{ max: number; used: number }>`
    select current_setting('max_connections')::int as max,
      (select count(*)::int from pg_stat_activity where backend_type = 'client backend') as used`.execute(db);
  const { max, used } = rows[0] as { max: number; used: number };
  const values = { max_connections: max, used, for_each_node: connections };
  const shortage = await findConnectionShortage(db, connections);
  if (used >= max * 0.9) {
    return check(
      'database.connections',
      'error',
      `${used} of ${max} connections are used: new ones will be refused`,
      'Raise max_connections, or lower NUNCIO_DATABASE_CONNECTIONS or the connections of other applications.',
      values,
    );
  }
  if (shortage !== undefined) {
    return check(
      'database.connections',
      'warning',
      `one more node would not get its connections: ${shortage}`,
      'Raise max_connections or lower NUNCIO_DATABASE_CONNECTIONS: a rolling restart needs one node more.',
      values,
    );
  }
  return check('database.connections', 'ok', `${used} of ${max} connections are used`, null, values);
}
