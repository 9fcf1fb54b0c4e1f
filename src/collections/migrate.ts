/**
 * Migrates the tables of collections to their declarations. Creates missing tables and columns, and creates and drops
 * indexes. Keeps columns that are no longer declared, and makes them nullable. If a change needs a decision of the operator,
 * it changes nothing and reports all problems. Owns the table `collections` and the tables of the collections.
 */

import type pg from 'pg';
import { beginAttempt, withLockPatience } from '../database/lock_patience.ts';
import { lockedError } from '../database/migrate.ts';
import { connectClient } from '../database/schema.ts';
import { identifier } from './literal.ts';
import { type ResourceType, withChildren } from './resource_type.ts';
import { columnsOf, constraintsOf, indexesOf, indexPrefix, type TableColumn } from './table.ts';

/** Tables do not match their declarations. Has one line per problem. */
class CollectionsError extends Error {
  override readonly name = 'CollectionsError';
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.problems = problems;
  }
}

/**
 * Migrates all tables in one transaction. The SQL migrations must run first.
 * @returns one line per change
 * @throws CollectionsError with every problem found; then nothing changes
 */
export async function migrateCollections(
  connectionString: string,
  collections: readonly ResourceType[],
): Promise<string[]> {
  return withLockPatience(() => migrateOnce(connectionString, collections), lockedError);
}

async function migrateOnce(
  connectionString: string,
  collections: readonly ResourceType[],
): Promise<string[]> {
  const client = await connectClient(connectionString, 'nuncio migrate');
  try {
    await client.query(beginAttempt);
    await client.query(`select take_lock('collections')`);
    const plan = await planTables(client, collections);
    for (const statement of plan.statements) await client.query(statement);
    await client.query('commit');
    return plan.done;
  } finally {
    await client.end();
  }
}

/**
 * Checks the tables for a server that may not change them.
 * @throws CollectionsError if a table does not match its declaration
 */
export async function requireCollections(
  connectionString: string,
  collections: readonly ResourceType[],
): Promise<void> {
  const client = await connectClient(connectionString, 'nuncio migrate');
  try {
    const { done } = await planTables(client, collections);
    if (done.length > 0) throw new CollectionsError(done.map((line) => `pending: ${line}`));
  } finally {
    await client.end();
  }
}

interface Plan {
  statements: string[];
  done: string[];
  problems: string[];
}

async function planTables(client: pg.Client, collections: readonly ResourceType[]): Promise<Plan> {
  const plan: Plan = { statements: [], done: [], problems: [] };
  for (const type of collections.flatMap(withChildren)) {
    const existing = await readTable(client, type.table);
    if (existing === undefined) planNewTable(type, plan);
    else if (!existing.ours) {
      plan.problems.push(
        `${type.table}: the database has a table of that name that was not created from a declaration`,
      );
    } else planColumns(type, existing, plan);
    planIndexes(type, existing, plan);
  }
  if (plan.problems.length > 0) throw new CollectionsError(plan.problems);
  return plan;
}

function planNewTable(type: ResourceType, plan: Plan): void {
  const columns = columnsOf(type).map(columnText);
  plan.statements.push(
    `create table ${identifier(type.table)} (${[...columns, ...constraintsOf(type)].join(', ')})`,
    `insert into collections (name) values ('${type.table}')`,
  );
  plan.done.push(`table ${type.table} created`);
}

function columnText(column: TableColumn): string {
  const notNull = column.notNull ? ' not null' : '';
  const fallback = column.default === undefined ? '' : ` default ${column.default}`;
  return `${identifier(column.name)} ${column.type}${notNull}${fallback}`;
}

function planColumns(type: ResourceType, existing: ExistingTable, plan: Plan): void {
  const table = identifier(type.table);
  const wanted = columnsOf(type);
  for (const column of wanted) {
    const found = existing.columns.get(column.name);
    const place = `${type.table}.${column.name}`;
    if (found === undefined) {
      if (column.notNull && column.default === undefined && existing.hasRows) {
        plan.problems.push(`${place}: a new required column needs a default, because the table has rows`);
        continue;
      }
      plan.statements.push(`alter table ${table} add column ${columnText(column)}`);
      plan.done.push(`column ${place} added`);
    } else if (found.type !== column.type) {
      plan.problems.push(
        `${place}: the type is ${found.type} in the database and ${column.type} in the declaration: change the column, or declare a field with another name`,
      );
    } else if (found.notNull && !column.notNull) {
      plan.statements.push(`alter table ${table} alter column ${identifier(column.name)} drop not null`);
      plan.done.push(`column ${place} made nullable`);
    } else if (!found.notNull && column.notNull) {
      if (found.hasNulls)
        plan.problems.push(`${place}: the column is no longer nullable, but rows have null in it`);
      plan.statements.push(`alter table ${table} alter column ${identifier(column.name)} set not null`);
      plan.done.push(`column ${place} made not null`);
    }
  }
  const names = new Set(wanted.map((column) => column.name));
  for (const [name, found] of existing.columns) {
    if (names.has(name) || !found.notNull || found.hasDefault) continue;
    plan.statements.push(`alter table ${table} alter column ${identifier(name)} drop not null`);
    plan.done.push(`column ${type.table}.${name}, no longer declared, kept and made nullable`);
  }
}

function planIndexes(type: ResourceType, table: ExistingTable | undefined, plan: Plan): void {
  const wanted = indexesOf(type);
  const existing = table?.indexes ?? [];
  for (const { name, definition } of wanted) {
    if (existing.includes(name)) continue;
    plan.statements.push(`create index ${identifier(name)} on ${identifier(type.table)} ${definition}`);
    if (table !== undefined) plan.done.push(`index on ${type.table} ${definition} created`);
  }
  for (const name of existing) {
    if (wanted.some((index) => index.name === name)) continue;
    plan.statements.push(`drop index ${identifier(name)}`);
    plan.done.push(`index ${name} dropped`);
  }
}

interface ExistingTable {
  ours: boolean;
  hasRows: boolean;
  columns: Map<string, { type: string; notNull: boolean; hasDefault: boolean; hasNulls: boolean }>;
  /** Names of indexes that this module created. */
  indexes: string[];
}

async function readTable(client: pg.Client, table: string): Promise<ExistingTable | undefined> {
  const found = await client.query<{ ours: boolean }>(
    `select exists (select from collections where name = $1) as ours
       from pg_class where relnamespace = current_schema()::regnamespace and relname = $2`,
    [table, table],
  );
  const ours = found.rows[0]?.ours;
  if (ours === undefined) return undefined;
  const { rows: columns } = await client.query<{
    name: string;
    type: string;
    not_null: boolean;
    has_default: boolean;
  }>(
    `select attname as name, format_type(atttypid, atttypmod) as type, attnotnull as not_null,
            atthasdef as has_default
       from pg_attribute
      where attrelid = to_regclass(quote_ident(current_schema()) || '.' || $1) and attnum > 0 and not attisdropped`,
    [identifier(table)],
  );
  const { rows: indexes } = await client.query<{ name: string }>(
    `select c.relname as name from pg_index i join pg_class c on c.oid = i.indexrelid
      where i.indrelid = to_regclass(quote_ident(current_schema()) || '.' || $1) and starts_with(c.relname, $2)`,
    [identifier(table), indexPrefix],
  );
  const { rows: some } = await client.query(`select from ${identifier(table)} limit 1`);
  const result: ExistingTable = {
    ours,
    hasRows: some.length > 0,
    columns: new Map(),
    indexes: indexes.map((row) => row.name),
  };
  for (const column of columns) {
    const nulls = column.not_null
      ? []
      : (
          await client.query(
            `select from ${identifier(table)} where ${identifier(column.name)} is null limit 1`,
          )
        ).rows;
    result.columns.set(column.name, {
      type: column.type,
      notNull: column.not_null,
      hasDefault: column.has_default,
      hasNulls: nulls.length > 0,
    });
  }
  return result;
}
