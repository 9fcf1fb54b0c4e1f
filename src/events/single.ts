/**
 * Requests with one event each. Concurrent requests share statements and commits (database/batcher.ts). Each request gets its
 * own response, and a refused request does not affect the others.
 *
 * Events with a chosen id and requests with an `Idempotency-Key` need a transaction of several statements, which may wait for
 * another node that works on the same id. They are collected separately.
 */

import { Batcher } from '../database/batcher.ts';
import type { Database, Transaction } from '../database/database.ts';
import { claimKeys, type KeyedRequest, storeResponses } from '../http/idempotency.ts';
import type { JsonResponse } from '../http/json_response.ts';
import { Problem } from '../http/problem.ts';
import type { PublishedEvent } from './batch.ts';
import {
  accountDeleted,
  createOwners,
  findOwners,
  insertEvents,
  reusedId,
  type StoredEvent,
  takeIds,
  unknownAccount,
  unknownAccounts,
} from './store.ts';

export interface SingleEvent {
  event: PublishedEvent;
  /** Whether the publisher chose the id. */
  isChosen: boolean;
  keyed: KeyedRequest | undefined;
  /** JSON pointer of the event in the request body. */
  pointer: string;
  /** The response to send once the event is durable. */
  response: JsonResponse;
}

/** Approximate memory of a waiting request in addition to the event's body, in bytes. */
const requestBytes = 1_024;

/** @returns a function that stores a client's event and resolves to the response */
export function batchSingles(
  db: Database,
  onPublished: (events: StoredEvent[]) => void,
): (clientId: string, single: SingleEvent) => Promise<JsonResponse> {
  const plain = new Batcher<SingleEvent, JsonResponse>({
    execute: async (singles) => {
      const isKnown = await findOwners(db, eventsOf(singles));
      const { outcomes, stored } = isKnown
        ? await storeKnown(db, singles)
        : await db.transaction().execute(async (tx) => {
            await createOwners(tx, eventsOf(singles));
            return storeKnown(tx, singles);
          });
      onPublished(stored);
      return outcomes;
    },
  });
  const guarded = new Batcher<SingleEvent, JsonResponse>({
    execute: async (singles) => {
      const { outcomes, stored } = await untilStored(() =>
        db.transaction().execute((tx) => storeGuarded(tx, singles)),
      );
      onPublished(stored);
      return outcomes;
    },
  });
  return (clientId, single) => {
    const batcher = single.isChosen || single.keyed !== undefined ? guarded : plain;
    return batcher.add(clientId, single, single.event.body.length + requestBytes);
  };
}

function eventsOf(singles: readonly SingleEvent[]): PublishedEvent[] {
  return singles.map(({ event }) => event);
}

type Outcome = PromiseSettledResult<JsonResponse>;

interface Stored {
  /** One for each request, in order. */
  outcomes: Outcome[];
  /** The new events. */
  stored: StoredEvent[];
}

/** Stores the events whose accounts exist, in one statement if all do. */
async function storeKnown(db: Database | Transaction, singles: readonly SingleEvent[]): Promise<Stored> {
  const unknown = new Set<string>();
  for (;;) {
    const good = singles.filter(({ event }) => !unknown.has(event.accountId)).map(({ event }) => event);
    const stored = good.length === 0 ? [] : await insertEvents(db, good);
    if (stored !== undefined) {
      const outcomes = singles.map(({ event, pointer, response }) =>
        unknown.has(event.accountId) ? refused(unknownAccount([pointer])) : fulfilled(response),
      );
      return { outcomes, stored };
    }
    for (const accountId of await unknownAccounts(db, good)) unknown.add(accountId);
  }
}

/** Repeats a transaction in which an account was deleted: the next one refuses its events, and only these. */
async function untilStored(store: () => Promise<Stored>): Promise<Stored> {
  for (;;) {
    try {
      return await store();
    } catch (error) {
      if (!(error instanceof Problem && error.code === 'account-deleted')) throw error;
    }
  }
}

/** Handles requests with keys or chosen ids. Finds repeated and refused ones first, then stores the rest. */
async function storeGuarded(tx: Transaction, singles: readonly SingleEvent[]): Promise<Stored> {
  const outcomes = new Map<SingleEvent, Outcome>();
  await respondToKeyed(tx, singles, outcomes);
  const waiting = eventsOf(singles.filter((single) => !outcomes.has(single)));
  if (!(await findOwners(tx, waiting))) await createOwners(tx, waiting);
  await refuseUnknown(tx, singles, outcomes);
  const open = singles.filter((single) => !outcomes.has(single));
  const events = open.map(({ event }) => event);
  const chosen = open.keys().filter((index) => open[index]?.isChosen === true);
  const { taken, reused } = await takeIds(tx, events, [...chosen]);
  const fresh = events.filter((_event, index) => !taken.has(index) && !reused.has(index));
  const stored = fresh.length === 0 ? [] : await insertEvents(tx, fresh);
  if (stored === undefined) throw accountDeleted();
  const kept: { request: KeyedRequest; response: JsonResponse }[] = [];
  for (const [index, single] of open.entries()) {
    const { pointer, response, keyed } = single;
    outcomes.set(single, reused.has(index) ? refused(reusedId(pointer)) : fulfilled(response));
    if (keyed !== undefined && !reused.has(index)) kept.push({ request: keyed, response });
  }
  if (kept.length > 0) await storeResponses(tx, kept);
  return { outcomes: singles.map((single) => outcomes.get(single) as Outcome), stored };
}

/** Repeats the first response, or refuses, for requests whose key was used before. */
async function respondToKeyed(
  tx: Transaction,
  singles: readonly SingleEvent[],
  outcomes: Map<SingleEvent, Outcome>,
): Promise<void> {
  const requests = singles.flatMap((single) =>
    single.keyed === undefined ? [] : [{ single, keyed: single.keyed }],
  );
  if (requests.length === 0) return;
  const found = await claimKeys(
    tx,
    requests.map(({ keyed }) => keyed),
  );
  for (const [index, { single }] of requests.entries()) {
    const response = found[index];
    if (response instanceof Problem) outcomes.set(single, refused(response));
    else if (response !== undefined) outcomes.set(single, fulfilled(response));
  }
}

/** Runs before ids are reserved: a refused event must not use up its id. */
async function refuseUnknown(
  tx: Transaction,
  singles: readonly SingleEvent[],
  outcomes: Map<SingleEvent, Outcome>,
): Promise<void> {
  const open = singles.filter((single) => !outcomes.has(single));
  if (open.length === 0) return;
  const unknown = await unknownAccounts(
    tx,
    open.map(({ event }) => event),
  );
  for (const single of open) {
    if (unknown.has(single.event.accountId)) outcomes.set(single, refused(unknownAccount([single.pointer])));
  }
}

function fulfilled(value: JsonResponse): Outcome {
  return { status: 'fulfilled', value };
}

function refused(reason: Problem): Outcome {
  return { status: 'rejected', reason };
}
