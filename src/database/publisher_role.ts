/**
 * The role that may publish by SQL, `<schema>_publisher`. A migration creates it if the database user may create roles.
 * Otherwise a database administrator does.
 */

import type pg from 'pg';
import { connectClient, schemaOf } from './schema.ts';

/** @returns the SQL statements that a database administrator must still run before applications can publish by SQL */
export async function missingPublisherStatements(connectionString: string): Promise<string[]> {
  const schema = schemaOf(connectionString);
  const client = await connectClient(connectionString, 'nuncio migrate');
  try {
    return await statementsFor(client, schema);
  } finally {
    await client.end();
  }
}

async function statementsFor(client: pg.Client, schema: string): Promise<string[]> {
  const { rows } = await client.query<{ statement: string; is_done: boolean | null }>(
    `with names as (
       select quote_ident($1) as schema, quote_ident($1 || '_publisher') as role,
         (select oid from pg_roles where rolname = $1 || '_publisher') as role_oid
     )
     select format(statement, schema, role) as statement, is_done
     from names, lateral (values
       ('create role %2$s nologin', role_oid is not null),
       ('grant usage on schema %1$s to %2$s', has_schema_privilege(role_oid, $1, 'usage')),
       ('grant execute on function %1$s.publish(text, text, jsonb, text) to %2$s',
         has_function_privilege(role_oid, 'publish(text, text, jsonb, text)', 'execute'))
     ) as steps (statement, is_done)`,
    [schema],
  );
  return rows.filter(({ is_done: isDone }) => isDone !== true).map(({ statement }) => `${statement};`);
}

/** The warning for an operator, one line for each statement. */
export function explainMissingPublisher(statements: readonly string[]): string[] {
  return [
    'applications cannot publish by SQL yet: the database user may not create the role for it. A database administrator runs:',
    ...statements.map((statement) => `  ${statement}`),
  ];
}
