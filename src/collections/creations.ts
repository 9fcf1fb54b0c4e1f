/**
 * Batches creations of one collection, so that they share statements and commits (database/batcher.ts). Each request gets
 * its own response, and an invalid one fails alone.
 *
 * Events of a sub-collection use the queues of the parent's owner. So what an account adds to parents of others is limited.
 */

import { Batcher } from '../database/batcher.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { StoredEvent } from '../events/store.ts';
import { claimKeys, type KeyedRequest, storeResponses } from '../http/idempotency.ts';
import type { JsonResponse } from '../http/json_response.ts';
import { Problem } from '../http/problem.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import type { Sharer } from '../shared/owner_turns.ts';
import { createResources, findOwners, type NewResource } from './create.ts';
import type { Row } from './resource.ts';
import type { ResourceType } from './resource_type.ts';

export interface Creation extends NewResource {
  keyed: KeyedRequest | undefined;
  /** Returns the response for the created row. */
  show: (row: Row) => JsonResponse;
}

/** Undefined if the author cannot read the parent or add to it. */
type Created = JsonResponse | undefined;

/**
 * @param additions limits what an account adds per minute to resources of others; each sub-collection multiplies its limit
 * @returns a function that creates a resource on behalf of an owner, whose requests share a limit, and of its part
 */
export function batchCreations(
  db: Database,
  type: ResourceType,
  additions: RateLimiter,
  onPublished: (events: StoredEvent[]) => void,
): (owner: Sharer, creation: Creation, bytes: number) => Promise<Created> {
  const refusalOf = limitAdditions(type, additions);
  const batcher = new Batcher<Creation, Created>({
    execute: async (creations) => {
      const { outcomes, events } = await db
        .transaction()
        .execute((tx) => createAll(tx, type, creations, refusalOf));
      onPublished(events);
      return outcomes;
    },
  });
  return (owner, creation, bytes) => batcher.add(owner, creation, bytes);
}

type RefusalOf = (creation: Creation, owner: string) => Problem | undefined;

/** @returns a function that counts a creation, and returns a Problem above the limit */
function limitAdditions(type: ResourceType, additions: RateLimiter): RefusalOf {
  // The batcher divides a batch that the database refuses, and runs the parts again.
  const counted = new WeakSet<Creation>();
  const what = `${type.name} on ${type.parent?.name} of others`;
  return (creation, owner) => {
    if (owner === creation.author || counted.has(creation)) return undefined;
    try {
      additions.count(`added ${type.table} ${creation.author}`, type.addedPerMinute, what);
    } catch (error) {
      if (error instanceof Problem) return error;
      throw error;
    }
    counted.add(creation);
    return undefined;
  };
}

async function createAll(
  tx: Transaction,
  type: ResourceType,
  creations: readonly Creation[],
  refusalOf: RefusalOf,
): Promise<{ outcomes: PromiseSettledResult<Created>[]; events: StoredEvent[] }> {
  const before = await findStoredResponses(tx, creations);
  const open = creations.filter((creation) => !before.has(creation));
  const owners = await findOwners(tx, type, open);
  const allowed: { creation: Creation; owner: string }[] = [];
  for (const [index, creation] of open.entries()) {
    const owner = owners[index];
    if (owner === undefined) continue;
    const refusal = refusalOf(creation, owner);
    if (refusal === undefined) allowed.push({ creation, owner });
    else before.set(creation, refusal);
  }
  const given = allowed.map(({ creation, owner }) => ({ ...creation, owner }));
  const { rows, events } =
    given.length === 0 ? { rows: [], events: [] } : await createResources(tx, type, given);
  const created = new Map<Creation, JsonResponse>();
  for (const [index, { creation }] of allowed.entries()) {
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
