/**
 * Migrations: plain SQL files, forward only, each applied once, all in one transaction, by one node at a time.
 * Owns the table `migrations`.
 */

import { readdir, readFile } from 'node:fs/promises';
import pg from 'pg';

const directory = new URL('../../migrations/', import.meta.url);

/** An arbitrary number that says "migrating Nuncio" to every node of a database. */
const lockKey = 7_236_501_127n;

/**
 * Brings the schema up to date.
 * @returns names of the migrations that were applied now
 * @throws Error of PostgreSQL, with the file's name in the message; nothing is applied then
 */
export async function migrate(connectionString: string): Promise<string[]> {
  const client = new pg.Client({ connectionString, application_name: 'nuncio migrate' });
  await client.connect();
  try {
    await client.query('begin');
    await client.query('select pg_advisory_xact_lock($1)', [lockKey]);
    await client.query(`
      create table if not exists migrations (
        name text primary key,
        applied_at timestamptz not null default now()
      )`);
    const applied = await pendingMigrations(client).then((pending) => applyAll(client, pending));
    await client.query('commit');
    return applied;
  } finally {
    await client.end();
  }
}

/** Names of migrations that a database still lacks: what `/readyz` and `start --no-migrate` ask. */
export async function pendingMigrations(client: pg.Client): Promise<string[]> {
  const files = (await readdir(directory)).filter((name) => name.endsWith('.sql')).sort();
  const { rows } = await client.query<{ name: string }>('select name from migrations');
  const done = new Set(rows.map((row) => row.name));
  return files.filter((name) => !done.has(name));
}

async function applyAll(client: pg.Client, names: string[]): Promise<string[]> {
  for (const name of names) {
    try {
      await client.query(await readFile(new URL(name, directory), 'utf8'));
    } catch (error) {
      throw new Error(`migration ${name}: ${(error as Error).message}`, { cause: error });
    }
    await client.query('insert into migrations (name) values ($1)', [name]);
  }
  return names;
}

/**
 * For a server that may not change the schema.
 * @throws Error with the names that are missing
 */
export async function requireMigrated(connectionString: string): Promise<void> {
  const client = new pg.Client({ connectionString, application_name: 'nuncio migrate' });
  await client.connect();
  try {
    const { rows } = await client.query(`select to_regclass('migrations') is not null as present`);
    const missing = rows[0].present ? await pendingMigrations(client) : ['all of it'];
    if (missing.length > 0) throw new Error(`the schema lacks ${missing.join(', ')}: run nuncio migrate`);
  } finally {
    await client.end();
  }
}
