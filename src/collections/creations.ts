/**
 * Batches creations of one collection, so that they share statements and commits (database/batcher.ts). Each request gets
 * its own response, and an invalid one fails alone.
 */

import { Batcher } from '../database/batcher.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { StoredEvent } from '../events/store.ts';
import { claimKeys, type KeyedRequest, storeResponses } from '../http/idempotency.ts';
import type { JsonResponse } from '../http/json_response.ts';
import { Problem } from '../http/problem.ts';
import { createResources, type NewResource } from './create.ts';
import type { OwnedRow } from './resource.ts';
import type { ResourceType } from './resource_type.ts';

export interface Creation extends NewResource {
  keyed: KeyedRequest | undefined;
  /** Returns the response for the created row. */
  show: (row: OwnedRow) => JsonResponse;
}

/** Undefined if the author cannot read the parent or add to it. */
type Created = JsonResponse | undefined;

/** @returns a function that creates a resource on behalf of an owner, whose requests share a limit */
export function batchCreations(
  db: Database,
  type: ResourceType,
  onPublished: (events: StoredEvent[]) => void,
): (owner: string, creation: Creation, bytes: number) => Promise<Created> {
  const batcher = new Batcher<Creation, Created>({
    execute: async (creations) => {
      const { outcomes, events } = await db.transaction().execute((tx) => createAll(tx, type, creations));
      onPublished(events);
      return outcomes;
    },
  });
  return (owner, creation, bytes) => batcher.add(owner, creation, bytes);
}

async function createAll(
  tx: Transaction,
  type: ResourceType,
  creations: readonly Creation[],
): Promise<{ outcomes: PromiseSettledResult<Created>[]; events: StoredEvent[] }> {
  const before = await findStoredResponses(tx, creations);
  const open = creations.filter((creation) => !before.has(creation));
  const { rows, events } =
    open.length === 0 ? { rows: [], events: [] } : await createResources(tx, type, open);
  const created = new Map<Creation, JsonResponse>();
  for (const [index, creation] of open.entries()) {
    const row = rows[index];
    if (row !== undefined) created.set(creation, creation.show(row));
  }
  const kept = [...created].flatMap(([{ keyed }, response]) =>
    keyed === undefined ? [] : [{ request: keyed, response }],
  );
  if (kept.length > 0) await storeResponses(tx, kept);
  const outcomes = creations.map((creation): PromiseSettledResult<Created> => {
    const response = before.get(creation) ?? created.get(creation);
    return response instanceof Problem
      ? { status: 'rejected', reason: response }
      : { status: 'fulfilled', value: response };
  });
  return { outcomes, events };
}

/** Returns the stored response, or the Problem, of each request whose key was used before. */
async function findStoredResponses(
  tx: Transaction,
  creations: readonly Creation[],
): Promise<Map<Creation, JsonResponse | Problem>> {
  const before = new Map<Creation, JsonResponse | Problem>();
  const keyed = creations.filter((creation) => creation.keyed !== undefined);
  if (keyed.length === 0) return before;
  const found = await claimKeys(
    tx,
    keyed.map((creation) => creation.keyed as KeyedRequest),
  );
  for (const [index, response] of found.entries()) {
    if (response !== undefined) before.set(keyed[index] as Creation, response);
  }
  return before;
}
