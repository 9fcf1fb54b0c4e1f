/**
 * Creations of one collection that share statements and commits (see database/collector.ts). Each request has its own
 * response, and a bad one refuses itself alone.
 */

import { Collector } from '../database/collector.ts';
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
  /** The response for the row that was made. */
  show: (row: OwnedRow) => JsonResponse;
}

/** Undefined where nothing was made: the parent is not there for the author, or takes nothing from them. */
type Made = JsonResponse | undefined;

/** @returns a function that makes a resource, for an owner of requests */
export function collectCreations(
  db: Database,
  type: ResourceType,
  onPublished: (events: StoredEvent[]) => void,
): (owner: string, creation: Creation, bytes: number) => Promise<Made> {
  const collector = new Collector<Creation, Made>({
    execute: async (creations) => {
      const { outcomes, events } = await db.transaction().execute((tx) => createAll(tx, type, creations));
      onPublished(events);
      return outcomes;
    },
  });
  return (owner, creation, bytes) => collector.add(owner, creation, bytes);
}

async function createAll(
  tx: Transaction,
  type: ResourceType,
  creations: readonly Creation[],
): Promise<{ outcomes: PromiseSettledResult<Made>[]; events: StoredEvent[] }> {
  const before = await answersBefore(tx, creations);
  const open = creations.filter((creation) => !before.has(creation));
  const { rows, events } =
    open.length === 0 ? { rows: [], events: [] } : await createResources(tx, type, open);
  const made = new Map<Creation, JsonResponse>();
  for (const [index, creation] of open.entries()) {
    const row = rows[index];
    if (row !== undefined) made.set(creation, creation.show(row));
  }
  const kept = [...made].flatMap(([{ keyed }, response]) =>
    keyed === undefined ? [] : [{ request: keyed, response }],
  );
  if (kept.length > 0) await storeResponses(tx, kept);
  const outcomes = creations.map((creation): PromiseSettledResult<Made> => {
    const answer = before.get(creation) ?? made.get(creation);
    return answer instanceof Problem
      ? { status: 'rejected', reason: answer }
      : { status: 'fulfilled', value: answer };
  });
  return { outcomes, events };
}

/** Of requests whose key was used before: the first response, or why they are refused. */
async function answersBefore(
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
  for (const [index, answer] of found.entries()) {
    if (answer !== undefined) before.set(keyed[index] as Creation, answer);
  }
  return before;
}
