/**
 * The PostgreSQL schema that everything of Nuncio is in. Its name travels in the URL of the database, so that no connection
 * is opened without it. Each connection sets its search path by a statement before anything else: poolers refuse or ignore
 * unknown parameters of the start-up message, and a role may have a search path of its own.
 */

import pg from 'pg';

export const defaultSchema = 'nuncio';
/** Bytes of a name at most: names of notification channels begin with it, and PostgreSQL allows them 63. */
const nameBytesMax = 40;
const parameter = 'nuncio_schema';

/** What can be a name: a plain identifier that PostgreSQL does not keep for itself, and not the schema of everybody. */
export function isSchemaName(name: string): boolean {
  if (!/^[a-z_][a-z0-9_]*$/.test(name) || name.length > nameBytesMax) return false;
  return !name.startsWith('pg_') && name !== 'public' && name !== 'information_schema';
}

/** The URL of the database with another schema than the default. */
export function withSchema(databaseUrl: string, schema: string): string {
  if (schema === defaultSchema) return databaseUrl;
  return `${databaseUrl}${databaseUrl.includes('?') ? '&' : '?'}${parameter}=${schema}`;
}

/** @throws Error for a name that is none */
export function schemaOf(databaseUrl: string): string {
  const [, name = defaultSchema] = /[?&]nuncio_schema=([^&#]*)/.exec(databaseUrl) ?? [];
  if (!isSchemaName(name)) throw new Error(`not the name of a schema: ${name}`);
  return name;
}

/**
 * The statement that a connection begins with. PostgreSQL looks into `pg_catalog` first. Temporary tables, which it would
 * otherwise look for even earlier, come last.
 */
export function searchPathStatement(databaseUrl: string): string {
  return `set search_path to "${schemaOf(databaseUrl)}", pg_temp`;
}

/** A single connection whose search path is set. The caller ends it. */
export async function connectClient(databaseUrl: string, applicationName: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: databaseUrl, application_name: applicationName });
  await client.connect();
  try {
    await client.query(searchPathStatement(databaseUrl));
    return client;
  } catch (error) {
    await client.end();
    throw error;
  }
}
