/**
 * Applies migrations: SQL files, forward only, each applied once. One node applies all pending files in one transaction.
 * The search path contains only Nuncio's schema, and migrations create nothing outside of it. Owns the table `migrations`.
 *
 *   no schema → schema → locks on all tables to change → files in name order → functions revoked from PUBLIC
 */

import { readdir, readFile } from 'node:fs/promises';
import type pg from 'pg';
import { isStatementTimeout, lockNotAvailable } from './database.ts';
import { beginAttempt, withLockPatience } from './lock_patience.ts';
import { connectClient, schemaOf } from './schema.ts';

const directory = new URL('../../migrations/', import.meta.url);
const applicationName = 'nuncio migrate';
/** SQLSTATE `insufficient_privilege`. */
const insufficientPrivilege = '42501';
/** SQLSTATEs of creating what another transaction has just created: unique_violation, duplicate_schema, duplicate_table. */
const createdElsewhere: ReadonlySet<string> = new Set(['23505', '42P06', '42P07']);
/** One attempt for the schema, one for the table, and one that finds both. */
const attemptsMax = 3;
/** Milliseconds to wait for the locks on all tables of a mode. There are two modes. */
const lockWaitMs = 400;

/** The schema cannot be migrated, for a reason that the operator can fix. */
export class SchemaError extends Error {
  override readonly name = 'SchemaError';
}

/**
 * Applies all pending migrations, or none.
 * @param patienceMs milliseconds to try while others hold locks; default five minutes
 * @returns the names of the applied migrations
 * @throws SchemaError, or PostgreSQL's error with the file name in its message
 */
export async function migrate(connectionString: string, patienceMs?: number): Promise<string[]> {
  const schema = schemaOf(connectionString);
  return withLockPatience(() => migrateDespiteOthers(connectionString, schema), lockedError, patienceMs);
}

async function migrateDespiteOthers(connectionString: string, schema: string): Promise<string[]> {
  for (let count = 1; ; count += 1) {
    try {
      return await migrateOnce(connectionString, schema);
    } catch (error) {
      // Another node created the schema or the table at the same time. This one waited for its commit.
      if (count === attemptsMax || !createdElsewhere.has(String((error as pg.DatabaseError).code)))
        throw explained(error, schema);
    }
  }
}

async function migrateOnce(connectionString: string, schema: string): Promise<string[]> {
  const client = await connectClient(connectionString, applicationName);
  try {
    await client.query(beginAttempt);
    await requireUsage(client, schema);
    await prepareSchema(client, schema);
    // One node at a time. Other roles of the database cannot lock the table.
    await client.query('lock table migrations in share row exclusive mode');
    await refuseUnknown(client);
    const pending = await readPending(client);
    await lockTables(client, pending);
    const applied = await applyAll(client, pending);
    // By default PostgreSQL lets every role execute a new function.
    if (applied.length > 0)
      await client.query(`revoke all on all functions in schema "${schema}" from public`);
    await client.query('commit');
    return applied;
  } finally {
    await client.end();
  }
}

/** Creates the schema and the table of migrations, unless the schema belongs to another application. */
async function prepareSchema(client: pg.Client, schema: string): Promise<void> {
  const { rows } = await client.query<{ is_there: boolean; is_ours: boolean; has_others: boolean }>(
    `select to_regnamespace($1) is not null as is_there,
       exists (select from pg_class where relnamespace = to_regnamespace($1) and relname = 'migrations') as is_ours,
       exists (select from pg_class where relnamespace = to_regnamespace($1)) as has_others`,
    [schema],
  );
  const [{ is_there: isThere, is_ours: isOurs, has_others: hasOthers }] = rows as [(typeof rows)[number]];
  if (hasOthers && !isOurs) {
    throw new SchemaError(
      `the schema "${schema}" holds tables of another application: set NUNCIO_DATABASE_SCHEMA to another name`,
    );
  }
  // PostgreSQL requires the privilege to create schemas even with `if not exists`.
  if (!isThere) await client.query(`create schema "${schema}"`);
  if (isOurs) return;
  await client.query(`
    create table migrations (
      name text primary key,
      applied_at timestamptz not null default now()
    )`);
}

/** @throws SchemaError if the schema was migrated by a newer version, or by one before the baseline of migrations */
async function refuseUnknown(client: pg.Client): Promise<void> {
  const files = await listMigrations();
  const { rows } = await client.query<{ name: string }>('select name from migrations order by name');
  const unknown = rows.map(({ name }) => name).filter((name) => !files.includes(name));
  const [first] = unknown;
  if (first === undefined) return;
  // A newer version only adds migrations after the last one.
  if (first < (files.at(-1) ?? '')) {
    throw new SchemaError(
      'this database was made by a version of Nuncio before its first release and cannot be upgraded: use an empty database or, for the embedded one, another NUNCIO_DATA_DIR',
    );
  }
  throw new SchemaError(
    `the schema belongs to a newer version of Nuncio (${unknown.join(', ')}): run that version, or restore a backup from before its migration`,
  );
}

/** Without this privilege, the tables of an existing schema seem to be missing. */
async function requireUsage(client: pg.Client, schema: string): Promise<void> {
  const { rows } = await client.query<{ owner: string }>(
    `select nspowner::regrole::text as owner from pg_namespace
      where nspname = $1 and not has_schema_privilege(oid, 'usage')`,
    [schema],
  );
  if (rows[0] === undefined) return;
  throw new SchemaError(
    `the database user has no privilege on the schema "${schema}": connect as its owner ${rows[0].owner}`,
  );
}

/** Whether the database has Nuncio's schema, of any version. */
export async function hasSchema(connectionString: string): Promise<boolean> {
  const client = await connectClient(connectionString, applicationName);
  try {
    return await isPresent(client, schemaOf(connectionString));
  } finally {
    await client.end();
  }
}

async function isPresent(client: pg.Client, schema: string): Promise<boolean> {
  const { rows } = await client.query<{ present: boolean }>(
    `select exists (
       select from pg_class where relnamespace = to_regnamespace($1) and relname = 'migrations'
     ) as present`,
    [schema],
  );
  return rows[0]?.present === true;
}

/** Returns the names of migrations that are not applied yet, for `/readyz` and `start --no-migrate`. */
async function pendingMigrations(client: pg.Client): Promise<string[]> {
  const { rows } = await client.query<{ name: string }>('select name from migrations');
  const done = new Set(rows.map((row) => row.name));
  return (await listMigrations()).filter((name) => !done.has(name));
}

async function listMigrations(): Promise<string[]> {
  return (await readdir(directory)).filter((name) => name.endsWith('.sql')).sort();
}

interface Migration {
  name: string;
  text: string;
}

async function readPending(client: pg.Client): Promise<Migration[]> {
  const names = await pendingMigrations(client);
  return Promise.all(
    names.map(async (name) => ({ name, text: await readFile(new URL(name, directory), 'utf8') })),
  );
}

/**
 * Locks every existing table that the migrations change, before they change any. All locks together are awaited for less than
 * `deadlock_timeout` (1 s). So in a deadlock with a running server, this transaction gives up before PostgreSQL cancels the other one.
 * Afterwards it waits for nothing.
 */
async function lockTables(client: pg.Client, pending: readonly Migration[]): Promise<void> {
  const text = pending.map((migration) => migration.text).join('\n');
  const changed = namesIn(text, /^alter table (?:only )?(\w+)/gm);
  const extended = namesIn(
    text,
    /\breferences (\w+)|^create (?:or replace )?(?:constraint )?trigger [^;]*? on (\w+)|^create (?:unique )?index \w+ on (\w+)/gm,
  ).difference(changed);
  await client.query(`set local statement_timeout = '${lockWaitMs}ms'`);
  for (const [names, mode] of [
    [changed, 'access exclusive'],
    [extended, 'share row exclusive'],
  ] as const) {
    const { rows } = await client.query<{ tables: string | null }>(
      `select string_agg(quote_ident(relname), ', ' order by relname) as tables from pg_class
        where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p') and relname = any($1)`,
      [[...names]],
    );
    const tables = rows[0]?.tables;
    if (tables) await client.query(`lock table ${tables} in ${mode} mode`).catch(throwLocked);
  }
  await client.query('set local statement_timeout = 0');
}

function namesIn(text: string, pattern: RegExp): Set<string> {
  return new Set([...text.matchAll(pattern)].map((found) => found.slice(1).find(Boolean) as string));
}

/** The timeout of the statement is the limit of the wait for several locks. */
function throwLocked(error: pg.DatabaseError): never {
  if (isStatementTimeout(error)) throw Object.assign(error, { code: lockNotAvailable });
  throw error;
}

async function applyAll(client: pg.Client, pending: readonly Migration[]): Promise<string[]> {
  for (const { name, text } of pending) {
    try {
      await client.query(text);
    } catch (cause) {
      const { message, code } = cause as pg.DatabaseError;
      throw Object.assign(new Error(`migration ${name}: ${message}`, { cause }), { code });
    }
    await client.query('insert into migrations (name) values ($1)', [name]);
  }
  return pending.map(({ name }) => name);
}

/** For when the patience with other sessions' locks ends. */
export function lockedError(cause: unknown): SchemaError {
  return new SchemaError(
    'the schema cannot be migrated, because other sessions have held locks on its tables for minutes: find them (nuncio doctor, pg_stat_activity), such as a dump or a forgotten transaction, and migrate again',
    { cause },
  );
}

function explained(error: unknown, schema: string): unknown {
  const { code, message } = error as pg.DatabaseError;
  if (code !== insufficientPrivilege) return error;
  return new SchemaError(
    `${message}: the database user needs the privilege CREATE on the database, or on a schema "${schema}" created for it (create schema ${schema} authorization …)`,
    { cause: error },
  );
}

/**
 * Checks the schema for a server that may not change it.
 * @throws SchemaError with the names of pending migrations
 */
export async function requireMigrated(connectionString: string): Promise<void> {
  const client = await connectClient(connectionString, applicationName);
  try {
    await requireUsage(client, schemaOf(connectionString));
    const present = await isPresent(client, schemaOf(connectionString));
    if (present) await refuseUnknown(client);
    const missing = present ? await pendingMigrations(client) : ['all of it'];
    if (missing.length > 0)
      throw new SchemaError(`the schema lacks ${missing.join(', ')}: run nuncio migrate`);
  } finally {
    await client.end();
  }
}
