/**
 * Two ways to read a list of 50 articles and write its JSON, in turn, on one connection without HTTP:
 *
 *   cells     one JSON array per column, split without parsing, and concatenated (src/collections/cells.ts)
 *   objects   rows of the driver, an object per resource, and `JSON.stringify`
 *
 *   npx node bench/list_json.ts [--rounds 12] [--lists 300]
 *
 * Prints the processor time per list of this process and of its PostgreSQL backend.
 */

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { sql } from 'kysely';
import { createAccount } from '../src/accounts/account.ts';
import { fromColumn, toTime } from '../src/collections/column.ts';
import { listResources } from '../src/collections/list.ts';
import { migrateCollections } from '../src/collections/migrate.ts';
import { readListQuery } from '../src/collections/query.ts';
import { pathOf, resourceWriter, writeAll } from '../src/collections/representation.ts';
import {
  columnList,
  matches,
  type Row,
  rawColumnList,
  readableByAll,
  shownColumns,
  tableOf,
} from '../src/collections/resource.ts';
import type { ResourceType } from '../src/collections/resource_type.ts';
import { newId } from '../src/crypto/ids.ts';
import { type Database, openDatabase } from '../src/database/database.ts';
import { startEmbedded } from '../src/database/embedded/embedded.ts';
import { migrate } from '../src/database/migrate.ts';
import type { Principal } from '../src/grants/principal.ts';
import { loadPlatform } from '../src/platform.ts';
import { article } from './support/article.ts';

const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '12' }, lists: { type: 'string', default: '300' } },
});
const lists = Number(values.lists);
const limit = 50;

const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
const postgres = await startEmbedded({ dataDir, role: 'server' });
const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 1 });
try {
  await measure();
} finally {
  await db.destroy();
  await postgres.stop();
  rmSync(dataDir, { recursive: true, force: true });
}

async function measure(): Promise<void> {
  const type = (await loadPlatform(null)).collections.find(({ name }) => name === 'articles') as ResourceType;
  const principal = await prepare(type);
  const ways = { cells: () => byCells(type, principal), objects: () => byObjects(db, type, principal) };
  assert.deepEqual(JSON.parse(await ways.objects()), JSON.parse(await ways.cells()));
  const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(db);
  const pid = rows[0]?.pid as number;
  const results = { cells: { node: [], postgres: [] }, objects: { node: [], postgres: [] } } as Record<
    keyof typeof ways,
    { node: number[]; postgres: number[] }
  >;
  for (let round = 0; round < Number(values.rounds) + 2; round += 1) {
    for (const [name, way] of Object.entries(ways) as [keyof typeof ways, () => Promise<string>][]) {
      const before = [process.cpuUsage(), backendMicros(pid)] as const;
      for (let list = 0; list < lists; list += 1) await way();
      const { user, system } = process.cpuUsage(before[0]);
      // The first rounds warm up the compiler.
      if (round < 2) continue;
      results[name].node.push((user + system) / lists);
      results[name].postgres.push((backendMicros(pid) - before[1]) / lists);
    }
  }
  for (const [name, { node, postgres }] of Object.entries(results)) {
    console.log(`${name.padEnd(8)} Node.js ${summary(node)}   PostgreSQL ${summary(postgres)}`);
  }
}

async function prepare(type: ResourceType): Promise<Principal> {
  await migrate(postgres.connectionString);
  await migrateCollections(postgres.connectionString, [type]);
  const { id } = await createAccount(db, { email: 'bench@example.com', name: 'Bench', password: newId() });
  for (let index = 0; index < 200; index += 1) {
    await sql`insert into ${tableOf(type)} (id, author, title, body) values (${newId()}, ${id}, ${article.title}, ${article.body})`.execute(
      db,
    );
  }
  const scopes = new Set([type.readScope, type.writeScope]);
  // Only the guard makes principals; this one stands for a checked token.
  return { accountId: id, clientId: 'bench', scopes } as unknown as Principal;
}

async function byCells(type: ResourceType, principal: Principal): Promise<string> {
  const { cells, count } = await listResources(
    db,
    type,
    principal,
    readListQuery(type, { limit: `${limit}` }),
  );
  return `{"items":[${writeAll(count, resourceWriter(type, principal, cells))}]}`;
}

/** The statement of list.ts, with rows instead of aggregates. */
async function byObjects(db: Database, type: ResourceType, principal: Principal): Promise<string> {
  const { accountId } = principal;
  const columns = sql`${rawColumnList(shownColumns(type))}, version`;
  const { rows } = await sql<Row>`
    select ${columnList(type, 'v')} from (
      select * from (
        (select ${columns} from ${tableOf(type)} where author = ${accountId} order by id desc limit ${limit + 1})
        union all
        (select ${columns} from ${tableOf(type)}
          where ${readableByAll(type)} and author is distinct from ${accountId}::uuid order by id desc limit ${limit + 1})
      ) as v order by id desc limit ${limit + 1}
    ) as v order by v.id desc`.execute(db);
  return JSON.stringify({ items: rows.slice(0, limit).map((row) => toObject(type, principal, row)) });
}

function toObject(type: ResourceType, principal: Principal, row: Row): Record<string, unknown> {
  const path = pathOf(type, row);
  const resource: Record<string, unknown> = { id: row.id };
  for (const { name, column } of type.fields) resource[name] = fromColumn(column, row[name]);
  resource.author = row.author;
  resource.created_at = toTime(row.created_at);
  resource.updated_at = toTime(row.updated_at as string);
  const links: Record<string, unknown> = { self: { href: path } };
  for (const { name } of type.children) links[name] = { href: `${path}/${name}` };
  if (row.author === principal.accountId && principal.scopes.has(type.writeScope)) {
    for (const { name, guard } of type.actions) {
      if (matches(guard, row)) links[name] = { href: `${path}/${name}`, method: 'POST' };
    }
  }
  resource._links = links;
  return resource;
}

/** Processor time of a PostgreSQL process so far, in microseconds (Linux). */
function backendMicros(pid: number): number {
  return Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1_000;
}

function summary(micros: number[]): string {
  const sorted = micros.toSorted((a, b) => a - b);
  const median = sorted[Math.floor(sorted.length / 2)] as number;
  return `${(sorted[0] as number).toFixed(0)} µs lowest, ${median.toFixed(0)} µs median`;
}
