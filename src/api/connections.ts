/** What `/apps/{id}/connections` and `/admin/connections` share: the schema of a connection trace, and reading a page of them. */

import type { FastifyRequest } from 'fastify';
import Type from 'typebox';
import {
  type Connection,
  type ConnectionFilter,
  connectionCursor,
  cursorForm,
  readFittingConnections,
} from '../connections/connection_store.ts';
import { connectionOutcomes, stepNames, stepOutcomes } from '../connections/step.ts';
import { isId } from '../crypto/ids.ts';
import { inTurnOf } from '../database/connection_user.ts';
import type { Database } from '../database/database.ts';
import { queryParameter } from '../http/describe.ts';
import { overloaded } from '../http/overload/refusal.ts';
import { withoutPlace } from '../http/overload/request_place.ts';
import { type PageQuery, readPage } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../http/schema.ts';
import { LimitedWork } from '../shared/limited_work.ts';
import { undivided } from '../shared/owner_turns.ts';
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
  'An attempt of an app to connect, the newest first. Kept for as long as the deployment says, by default 7 days. Contains no secrets. A page ends at 1 MiB of steps: with long traces it may be shorter than `limit` and still have `next`.';

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

/**
 * First deliveries are looked for in all partitions of the log, for each subscription of each grant on a page: up to seconds. One page after the other, so that
 * the members of an app leave the database to others.
 */
const firstDeliveries = new LimitedWork(1);
/** Pages that may wait for one caller. */
export const waitingMax = 4;

/**
 * Reads a page of connections, each with its first delivery.
 * @returns the page, and the cursor that the next one follows
 * @throws Problem 503 if too many pages of the caller wait
 */
export async function readConnectionPage(
  db: Database,
  request: FastifyRequest,
  filter: ConnectionFilter,
  { limit, after }: PageQuery,
): Promise<{ found: Connection[]; next: string | null }> {
  const caller = request.connectionUser ?? undivided('');
  if (firstDeliveries.isFull(caller, waitingMax)) throw overloaded();
  const { found, next } = await readFittingConnections(db, filter, limit, after);
  if (found.every(({ grantId }) => grantId === null)) return { found, next };
  if (firstDeliveries.isFull(caller, waitingMax)) throw overloaded();
  return withoutPlace(request, () =>
    firstDeliveries.run(caller, async () => {
      if (request.raw.socket.destroyed) throw overloaded();
      const { waitingOwners } = firstDeliveries;
      const read = () => addFirstDeliveries(db, found);
      return { found: await inTurnOf('first deliveries', waitingOwners, read), next };
    }),
  );
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
