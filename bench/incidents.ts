/**
 * `npx node bench/incidents.ts [--small] [names…]`: incidents that involve other accounts, apps or sessions, and what a stranger
 * notices of them. The stranger has a healthy subscriber and gets ten events a second. Prints its latency alone, during and after
 * each incident, the events that did not arrive, and the bounds. Exits with 1 if a bound does not hold.
 *
 * Each incident is described in its file in bench/incidents. It has a database and a server of its own.
 */

import { spawnSync } from 'node:child_process';
import { badEvent } from './incidents/bad_event.ts';
import { dueRetries, orderedWaiting } from './incidents/crowded_reads.ts';
import { manyBySql, oneEvent, rateLimitedLanes, unequalFanOuts } from './incidents/crowds.ts';
import { echoedSecrets } from './incidents/echoed_secrets.ts';
import { clientDelete } from './incidents/endings.ts';
import { filterBomb } from './incidents/filter_bomb.ts';
import { hangingHosts, oneAddress } from './incidents/hanging.ts';
import { largeBodies } from './incidents/large_bodies.ts';
import { foreignSnapshot, lockedLane } from './incidents/locks.ts';
import { patchKind } from './incidents/patch_kind.ts';
import { bursts, newConnections, publishers } from './incidents/pulls.ts';
import { coldLanes, refusedLanes } from './incidents/rare.ts';
import { recoverMissing } from './incidents/recover_missing.ts';
import { formatTable, holds, type Incident, type Row, type Size } from './incidents/row.ts';
import { slowCertificates } from './incidents/slow_certificates.ts';
import { tlsFloods } from './incidents/tls_floods.ts';
import { churn, rest, single } from './incidents/upkeep.ts';

const incidents: Record<string, Incident> = {
  'recover-missing': recoverMissing,
  'locked-lane': lockedLane,
  'foreign-snapshot': foreignSnapshot,
  'client-delete': clientDelete,
  'bad-event': badEvent,
  'filter-bomb': filterBomb,
  'large-bodies': largeBodies,
  'hanging-hosts': hangingHosts,
  'one-address': oneAddress,
  'slow-certificates': slowCertificates,
  'tls-floods': tlsFloods,
  'echoed-secrets': echoedSecrets,
  'patch-kind': patchKind,
  'rate-limited-lanes': rateLimitedLanes,
  'one-event-150000': oneEvent,
  'sql-20000': manyBySql,
  'unequal-fan-outs': unequalFanOuts,
  'refused-lanes': refusedLanes,
  'cold-lanes': coldLanes,
  bursts,
  publishers,
  'new-connections': newConnections,
  'due-retries': dueRetries,
  'ordered-waiting': orderedWaiting,
  churn,
  rest,
  'single-100': single,
};

/** This process publishes and measures, so its own garbage collections would count as latency. */
const quietFlags = ['--max-semi-space-size=64', '--min-semi-space-size=64', '--v8-pool-size=1'];
if (!process.execArgv.includes(quietFlags[0] as string)) {
  const { status } = spawnSync(process.execPath, [...quietFlags, ...process.argv.slice(1)], {
    stdio: 'inherit',
  });
  process.exit(status ?? 1);
}

const given = process.argv.slice(2);
const isSmall = given.includes('--small');
const size: Size = { isSmall, of: (small, full) => (isSmall ? small : full) };
const names = given.filter((text) => text !== '--small');
const unknown = names.filter((name) => !Object.hasOwn(incidents, name));
if (unknown.length > 0) throw new Error(`no such incident: ${unknown.join(', ')}`);

const rows: Row[] = [];
let hasFailed = false;
for (const name of names.length > 0 ? names : Object.keys(incidents)) {
  console.error(`${name} …`);
  try {
    rows.push(...(await (incidents[name] as Incident)(size)));
  } catch (error) {
    hasFailed = true;
    console.error(name, error);
  }
}
console.log(formatTable(rows));
process.exit(hasFailed || rows.some(({ checks }) => !checks.every(holds)) ? 1 : 0);
