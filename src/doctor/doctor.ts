/**
 * The doctor: looks at the settings, the network, PostgreSQL, the work of the servers and a node, and says what is wrong and what to do.
 * It only reads. `nuncio doctor` and `GET /admin/doctor` put its parts together.
 */

import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import { databaseStateProbes } from './database_state.ts';
import { networkProbes } from './network.ts';
import { nodeProbes } from './node.ts';
import { postgresSettingsProbes } from './postgres_settings.ts';
import { examine, type Probe, type Report } from './report.ts';
import { storageProbes } from './storage.ts';
import { workProbes } from './work.ts';

export interface Patient {
  config: Config;
  /** Undefined if it cannot be opened, which `more` reports. */
  db?: Database | undefined;
  /** A node's metrics in Prometheus' text format. */
  metrics: () => Promise<string | undefined>;
  /** Probes of the caller, which come first. */
  more?: readonly Probe[];
}

export function diagnose({ config, db, metrics, more = [] }: Patient): Promise<Report> {
  const ofDatabase =
    db === undefined
      ? []
      : [
          ...databaseStateProbes(db),
          ...postgresSettingsProbes(db, config.databaseConnections),
          // Only the embedded database is surely on this machine.
          ...storageProbes(db, config.databaseUrl === null ? config.dataDir : null),
          ...workProbes(db),
        ];
  return examine([...more, ...networkProbes(config), ...ofDatabase, ...nodeProbes(metrics)]);
}
