/**
 * Taking published rows in: each is checked as `POST /events` checks its events, and becomes an event or a rejected event. All in
 * the transaction that takes it out of the inbox, so that none is lost and none comes twice, wherever the server dies.
 */

import { sql } from 'kysely';
import { isId } from '../crypto/ids.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import type { Transaction } from '../database/database.ts';
import { type BodyFault, Problem } from '../http/problem.ts';
import { type PublishedEvent, parseBatch, readEvent } from './batch.ts';
import type { Catalogue } from './catalogue.ts';
import type { InboxRow } from './inbox.ts';
import type { Refusal } from './rejected_events.ts';
import {
  accountDeleted,
  createOwners,
  findOwners,
  insertEvents,
  type StoredEvent,
  takeIds,
} from './store.ts';

/** Faults of one event that are kept. */
const faultsKept = 20;

type Publication = Pick<InboxRow, 'account' | 'eventId' | 'isChosen' | 'kind' | 'body'>;

export interface TakenIn<Row extends Publication = InboxRow> {
  /** The new events. */
  stored: StoredEvent[];
  /** How many were there already, by an id that their publisher chose. */
  repeated: number;
  rejected: Rejected<Row>[];
}

export interface Rejected<Row> {
  row: Row;
  refusal: Refusal;
}

/** @param rows in the order in which they become events */
export async function takeIn<Row extends Publication>(
  tx: Transaction,
  rows: readonly Row[],
  catalogue: Catalogue,
): Promise<TakenIn<Row>> {
  const rejected: Rejected<Row>[] = [];
  const good: { row: Row; event: PublishedEvent }[] = [];
  const names = await readNames(tx, rows);
  for (const row of rows) {
    const checked = check(row, names, catalogue);
    if ('reason' in checked) rejected.push({ row, refusal: checked });
    else good.push({ row, event: checked });
  }
  const events = good.map(({ event }) => event);
  // Before ids are taken: every transaction locks in this order.
  if (!(await findOwners(tx, events))) await createOwners(tx, events);
  const chosen = [...good.keys()].filter((index) => good[index]?.row.isChosen);
  const { taken, reused } = await takeIds(tx, events, chosen);
  for (const index of reused) {
    const { row } = good[index] as (typeof good)[number];
    rejected.push({ row, refusal: refuse('/id', 'is the id of another event already', 'id-reused') });
  }
  const fresh = events.filter((_event, index) => !taken.has(index) && !reused.has(index));
  const stored = fresh.length === 0 ? [] : await insertEvents(tx, fresh);
  if (stored === undefined) throw accountDeleted();
  return { stored, repeated: taken.size, rejected };
}

/** What the names of accounts that look like an id are. */
interface Names {
  ids: ReadonlySet<string>;
  externalIds: ReadonlySet<string>;
}

async function readNames(tx: Transaction, rows: readonly Publication[]): Promise<Names> {
  const given = [...new Set(rows.map(({ account }) => account).filter((account) => isId(account)))];
  if (given.length === 0) return { ids: new Set(), externalIds: new Set() };
  const { rows: found } = await sql<{ id: string; is_id: boolean }>`
    select id::text, true as is_id from accounts where id = any(${uuidArray(given)}::uuid[])
    union all
    select external_id, false from accounts where external_id = any(${textArray(given)}::text[])`.execute(tx);
  const of = (isOwn: boolean) => new Set(found.filter((row) => row.is_id === isOwn).map(({ id }) => id));
  return { ids: of(true), externalIds: of(false) };
}

function check(row: Publication, names: Names, catalogue: Catalogue): PublishedEvent | Refusal {
  const { account, kind, eventId: id, body } = row;
  const isOwn = names.ids.has(account);
  // Nobody can tell whose event it is.
  if (isOwn && names.externalIds.has(account))
    return refuse('/account', 'is the id of one account and the external id of another', 'ambiguous-account');
  try {
    const faults: BodyFault[] = [];
    const name = isOwn ? account : { external_id: account };
    const event = readEvent(
      { kind, account: name, id, body: parseBatch(Buffer.from(body)) },
      '',
      catalogue,
      null,
      faults,
    );
    return event ?? { reason: sentenceOf(faults), errors: faults.slice(0, faultsKept) };
  } catch (error) {
    return refusalOf(error);
  }
}

/** Why an event is refused. @param error what checking or storing it met */
export function refusalOf(error: unknown): Refusal {
  if (error instanceof Problem) {
    const errors = error.errors ?? [];
    const reason = errors.length > 0 ? sentenceOf(errors) : error.message;
    return { reason, errors: errors.slice(0, faultsKept) };
  }
  // A schema that cannot be carried out, for example, or what the database refuses.
  return { reason: `${(error as Error)?.message ?? error}`.slice(0, 500), errors: [] };
}

function refuse(pointer: string, message: string, code: string): Refusal {
  const errors = [{ pointer, message, code }];
  return { reason: sentenceOf(errors), errors };
}

function sentenceOf(errors: readonly BodyFault[]): string {
  const [first] = errors;
  return first === undefined
    ? 'The event is not valid.'
    : `${first.pointer || 'The event'} ${first.message}.`;
}
