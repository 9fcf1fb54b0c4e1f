/**
 * The PostgreSQL schema that holds all objects of Nuncio. The database URL carries its name, so that no connection opens
 * without it. Each connection first sets its search path with a statement: poolers reject or ignore unknown startup
 * parameters, and a role may have its own search path.
 */

import pg from 'pg';

export const defaultSchema = 'nuncio';
/** Notification channels begin with the schema name, and PostgreSQL limits their names to 63 bytes. */
const nameBytesMax = 40;
const parameter = 'nuncio_schema';
/** Timeout for a single connection. */
const connectionMs = 10_000;

/** Accepts plain identifiers, except `public` and the names that PostgreSQL reserves. */
export function isSchemaName(name: string): boolean {
  if (!/^[a-z_][a-z0-9_]*$/.test(name) || name.length > nameBytesMax) return false;
  return !name.startsWith('pg_') && name !== 'public' && name !== 'information_schema';
}

/** Adds the schema name to a database URL, unless it is the default. */
export function withSchema(databaseUrl: string, schema: string): string {
  if (schema === defaultSchema) return databaseUrl;
  return `${databaseUrl}${databaseUrl.includes('?') ? '&' : '?'}${parameter}=${schema}`;
}

/** @throws Error when the URL names an invalid schema */
export function schemaOf(databaseUrl: string): string {
  const [, name = defaultSchema] = /[?&]nuncio_schema=([^&#]*)/.exec(databaseUrl) ?? [];
  if (!isSchemaName(name)) throw new Error(`not a valid schema name: ${name}`);
  return name;
}

/**
 * The first statement of each connection. PostgreSQL searches `pg_catalog` first in any case. It would search temporary
 * tables even earlier, so `pg_temp` is put last.
 */
export function searchPathStatement(databaseUrl: string): string {
  return `set search_path to "${schemaOf(databaseUrl)}", pg_temp`;
}

/** Opens a single connection with the search path set. The caller closes it. */
export async function connectClient(databaseUrl: string, applicationName: string): Promise<pg.Client> {
  const client = new pg.Client({
    connectionString: databaseUrl,
    application_name: applicationName,
    connectionTimeoutMillis: connectionMs,
  });
  try {
    await client.connect();
    await client.query(searchPathStatement(databaseUrl));
    return client;
  } catch (error) {
    // Also after a refused connection, which the driver may leave open until PostgreSQL's timeout for authentication.
    client.end().catch(() => {});
    throw error;
  }
}
