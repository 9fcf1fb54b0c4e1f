/** What `/apps/{id}/connections` and `/admin/connections` share: the schema of a connection trace, and reading a page of them. */

import Type from 'typebox';
import {
  type Connection,
  type ConnectionFilter,
  connectionCursor,
  cursorForm,
  readConnections,
} from '../connections/connection_store.ts';
import { connectionOutcomes, stepNames, stepOutcomes } from '../connections/step.ts';
import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { queryParameter } from '../http/describe.ts';
import { type PageQuery, readPage } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../http/schema.ts';
import { addFirstDeliveries } from '../webhooks/log/first_delivery.ts';

const ConnectionStep = named(
  'ConnectionStep',
  Type.Object(
    {
      name: StringEnum(...stepNames),
      at: Time(),
      outcome: StringEnum(...stepOutcomes),
      error: Nullable(Type.String({ description: 'The error code of the protocol.' })),
      explanation: Nullable(
        Type.String({ description: 'What was sent, what was expected, and how to mend it.' }),
      ),
      request: Nullable(
        Type.String({ description: 'The id of the request, which error pages show; null for a delivery.' }),
      ),
    },
    strict,
  ),
);

export const connectionMembers = {
  id: Id(),
  started_at: Time(),
  updated_at: Time(),
  outcome: StringEnum(...connectionOutcomes),
  steps: Type.Array(ConnectionStep),
};

export const connectionDescription =
  'An attempt of an app to connect, the newest first. Kept for as long as the deployment says, by default 7 days. Contains no secrets.';

export const connectionParameters = [
  queryParameter(
    'request',
    'Only the connection with this request, by the id that an error page shows.',
    Id(),
  ),
  queryParameter('outcome', 'Only connections with this outcome.', StringEnum(...connectionOutcomes)),
];

/** Reads the query of a list of connections. @throws Problem 400 */
export function readConnectionQuery(
  request: Parameters<typeof readPage>[0],
  others: readonly string[] = [],
): PageQuery & { filter: ConnectionFilter } {
  const page = readPage(request, ['request', 'outcome', ...others]);
  if (page.after !== null && !cursorForm.test(page.after)) throw page.invalid();
  const { request: requestId, outcome } = page.parameters;
  if (requestId !== undefined && !isId(requestId)) throw wrong('request must be an id.');
  const known = connectionOutcomes.find((name) => name === outcome);
  if (outcome !== undefined && known === undefined)
    throw wrong(`outcome must be one of ${connectionOutcomes.join(', ')}.`);
  return { ...page, filter: { requestId, outcome: known } };
}

/** Reads one more connection than a page has, each with its first delivery. */
export async function readConnectionPage(
  db: Database,
  filter: ConnectionFilter,
  { limit, after }: PageQuery,
): Promise<Connection[]> {
  return addFirstDeliveries(db, await readConnections(db, filter, limit + 1, after));
}

export const cursorOf = connectionCursor;

/** The members that everyone sees who may see the connection. */
export function representConnection(connection: Connection): Record<string, unknown> {
  const { id, startedAt, updatedAt, outcome, steps } = connection;
  return {
    id,
    started_at: startedAt.toISOString(),
    updated_at: updatedAt.toISOString(),
    outcome,
    steps,
  };
}

function wrong(detail: string): Problem {
  return new Problem(400, detail, { code: 'invalid-parameter' });
}
