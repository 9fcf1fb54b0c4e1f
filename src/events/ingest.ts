/**
 * Turns rows of the inbox into events or rejected events, with the same checks as `POST /events`. The rows are checked before the
 * transaction, which is short. It deletes them from the inbox and stores the events, so a crash neither loses nor repeats an event.
 */

import { sql } from 'kysely';
import { isId } from '../crypto/ids.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import type { Database, Transaction } from '../database/database.ts';
import { serverWork, takeBodyTurn } from '../http/body_turns.ts';
import { Problem, type ValidationError } from '../http/problem.ts';
import type { ProblemCode } from '../http/problem_codes.ts';
import { type PublishedEvent, parseBatch, readEvent } from './batch.ts';
import type { Catalogue } from './catalogue.ts';
import type { InboxRow } from './inbox.ts';
import type { Rejection } from './rejected_events.ts';
import {
  accountDeleted,
  createOwners,
  findOwners,
  insertEvents,
  type StoredEvent,
  takeIds,
} from './store.ts';

/** Maximum number of stored errors of one event. */
const errorsKept = 20;

type Publication = Pick<InboxRow, 'account' | 'eventId' | 'isChosen' | 'kind' | 'body'>;

export interface Ingested<Row extends Publication = InboxRow> {
  /** The new events. */
  stored: StoredEvent[];
  /** Number of events whose chosen id was stored before with the same content. */
  repeated: number;
  rejected: Rejected<Row>[];
}

export interface Rejected<Row> {
  row: Row;
  rejection: Rejection;
}

export interface Checked<Row extends Publication = InboxRow> {
  good: { row: Row; event: PublishedEvent }[];
  rejected: Rejected<Row>[];
}

/** @param rows in the order in which they are to become events */
export async function checkRows<Row extends Publication>(
  db: Database | Transaction,
  rows: readonly Row[],
  catalogue: Catalogue,
): Promise<Checked<Row>> {
  const rejected: Rejected<Row>[] = [];
  const good: Checked<Row>['good'] = [];
  const names = await readNames(db, rows);
  let bytes = 0;
  for (const row of rows) {
    bytes += row.body.length;
    // The rows of all accounts wait for it.
    const turn = takeBodyTurn(serverWork, bytes);
    if (turn !== undefined) {
      await turn;
      bytes = 0;
    }
    const checked = check(row, names, catalogue);
    if ('reason' in checked) rejected.push({ row, rejection: checked });
    else good.push({ row, event: checked });
  }
  return { good, rejected };
}

/** Stores the events. */
export async function storeChecked<Row extends Publication>(
  tx: Transaction,
  { good, rejected: refused }: Checked<Row>,
): Promise<Ingested<Row>> {
  const rejected = [...refused];
  const events = good.map(({ event }) => event);
  // Accounts before ids: every transaction locks in this order.
  if (!(await findOwners(tx, events))) await createOwners(tx, events);
  const chosen = [...good.keys()].filter((index) => good[index]?.row.isChosen);
  const { taken, reused } = await takeIds(tx, events, chosen);
  for (const index of reused) {
    const { row } = good[index] as (typeof good)[number];
    rejected.push({ row, rejection: reject('/id', 'is already the id of another event', 'id-reused') });
  }
  const fresh = events.filter((_event, index) => !taken.has(index) && !reused.has(index));
  const stored = fresh.length === 0 ? [] : await insertEvents(tx, fresh);
  if (stored === undefined) throw accountDeleted();
  return { stored, repeated: taken.size, rejected };
}

type NameRole = 'id' | 'external id' | 'deleted id';

/** Accounts in the database with a name that looks like an id. */
interface Names {
  ids: ReadonlySet<string>;
  externalIds: ReadonlySet<string>;
  /** Ids of deleted accounts. */
  deletedIds: ReadonlySet<string>;
}

async function readNames(db: Database | Transaction, rows: readonly Publication[]): Promise<Names> {
  const given = [...new Set(rows.map(({ account }) => account).filter((account) => isId(account)))];
  if (given.length === 0) return { ids: new Set(), externalIds: new Set(), deletedIds: new Set() };
  const { rows: found } = await sql<{ name: string; role: NameRole }>`
    select id::text as name, 'id' as role from accounts where id = any(${uuidArray(given)}::uuid[])
    union all
    select external_id, 'external id' from accounts where external_id = any(${textArray(given)}::text[])
    union all
    select id::text, 'deleted id' from deleted_accounts where id = any(${uuidArray(given)}::uuid[])`.execute(
    db,
  );
  const namesOf = (role: NameRole) =>
    new Set(found.filter((row) => row.role === role).map(({ name }) => name));
  return { ids: namesOf('id'), externalIds: namesOf('external id'), deletedIds: namesOf('deleted id') };
}

function check(row: Publication, names: Names, catalogue: Catalogue): PublishedEvent | Rejection {
  const { account, kind, eventId: id, body } = row;
  const isOwn = names.ids.has(account);
  // The owner is ambiguous.
  if (isOwn && names.externalIds.has(account))
    return reject('/account', 'is the id of one account and the external id of another', 'ambiguous-account');
  if (!isOwn && !names.externalIds.has(account) && names.deletedIds.has(account))
    return reject('/account', 'is the id of a deleted account', 'account-deleted');
  try {
    const errors: ValidationError[] = [];
    const name = isOwn ? account : { external_id: account };
    const event = readEvent(
      { kind, account: name, id, body: parseBatch(Buffer.from(body)) },
      '',
      catalogue,
      null,
      errors,
    );
    return event ?? { reason: sentenceOf(errors), errors: errors.slice(0, errorsKept) };
  } catch (error) {
    return rejectionOf(error);
  }
}

/** Converts an error into the reason of a rejection. @param error thrown while the event was checked or stored */
export function rejectionOf(error: unknown): Rejection {
  if (error instanceof Problem) {
    const errors = error.errors ?? [];
    const reason = errors.length > 0 ? sentenceOf(errors) : error.message;
    return { reason, errors: errors.slice(0, errorsKept) };
  }
  // For example an error in evaluating the schema, or an error of the database.
  return { reason: `${(error as Error)?.message ?? error}`.slice(0, 500), errors: [] };
}

function reject(pointer: string, message: string, code: ProblemCode): Rejection {
  const errors = [{ pointer, message, code }];
  return { reason: sentenceOf(errors), errors };
}

function sentenceOf(errors: readonly ValidationError[]): string {
  const [first] = errors;
  return first === undefined
    ? 'The event is not valid.'
    : `${first.pointer || 'The event'} ${first.message}.`;
}
