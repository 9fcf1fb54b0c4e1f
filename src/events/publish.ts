/**
 * Publishing: `POST /events`, for machine clients of the operator. A batch is taken whole or not at all, and the
 * answer is given once it is durable. The same id twice is one event, and so is the same `Idempotency-Key`.
 */

import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import type { FastifyInstance } from 'fastify';
import { sql } from 'kysely';
import { isId, newId } from '../crypto/ids.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import { type Database, inTransaction, type Transaction } from '../database/database.ts';
import type { Guard } from '../grants/principal.ts';
import { type Answer, sendAnswer } from '../http/answer.ts';
import { answerOnce, readIdempotencyKey } from '../http/idempotency.ts';
import { jsonDepthMax } from '../http/json.ts';
import { type BodyFault, bodyProblem, Problem } from '../http/problem.ts';
import { activeTraceparent } from '../http/tracing.ts';
import type { Catalogue } from './catalogue.ts';

/** Events of one request at most. */
export const batchEventsMax = 1_000;
/** Bytes of one event's body at most. */
export const eventBodyBytesMax = 262_144;
/** Bytes of one request at most. */
export const batchBytesMax = 16_777_216;
/** Characters of an id that a publisher chose, at most. */
const idCharactersMax = 255;
/** Faults told of in one answer at most. */
const faultsMax = 100;

/** One event as it goes into the database. */
export interface PublishedEvent {
  id: string;
  accountId: string;
  kind: string;
  /** The bytes to be sent. */
  body: Buffer;
}

/** Where a published event is found again. */
export interface StoredEvent extends PublishedEvent {
  day: string;
  position: number;
  createdAt: Date;
  /** Of the span in which it was published; null where that is not recorded. */
  traceparent: string | null;
}

export interface PublishingOptions {
  app: FastifyInstance;
  db: Database;
  guard: Guard;
  catalogue: Catalogue;
  /** Called after each commit with what was stored. */
  onPublished: (events: StoredEvent[]) => void;
}

export function registerPublishing(options: PublishingOptions): void {
  const { app, guard, catalogue } = options;
  // In a part of its own for the sake of its parser.
  app.register(async (part) => registerBatches(part, options));

  app.get('/event-kinds', async (request, reply) => {
    await guard(request);
    const items = [...catalogue.kinds.values()].map((kind) => ({
      name: kind.name,
      description: kind.description,
      scope: kind.object === null ? null : `read:${kind.object}`,
      schema: kind.schema,
      example: kind.example,
    }));
    return reply
      .header('cache-control', 'private')
      .send({ items, _links: { self: { href: '/event-kinds' } } });
  });
}

function registerBatches(part: FastifyInstance, options: PublishingOptions): void {
  const { db, guard, catalogue, onPublished } = options;
  part.removeContentTypeParser('application/json');
  part.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer' },
    async (_request: unknown, body: Buffer) => parseBatch(body),
  );
  part.post('/events', { bodyLimit: batchBytesMax }, async (request, reply) => {
    const principal = await guard(request, 'write:events');
    if (principal.accountId !== null) {
      throw new Problem(403, 'Only a client that speaks for itself may publish events.', {
        code: 'not-a-machine',
      });
    }
    const { events, chosen } = readBatch(request.body, catalogue);
    const isArray = Array.isArray(request.body);
    let stored: StoredEvent[] = [];
    const work = async (within: Database | Transaction): Promise<Answer> => {
      stored = await storeEvents(within, events, chosen, isArray);
      const ids = events.map(({ id }) => id);
      return { status: 202, headers: {}, body: JSON.stringify(isArray ? { ids } : { id: ids[0], ids }) };
    };
    const owner = `- ${principal.clientId}`;
    const keyed = readIdempotencyKey(request.headers['idempotency-key'], owner, request);
    const answer =
      keyed === undefined
        ? await work(db)
        : await db.transaction().execute((tx) => answerOnce(tx, keyed, work));
    onPublished(stored);
    return sendAnswer(reply, answer);
  });
}

/**
 * What is sent is written anew from what was read and checked, with NUL and halves of surrogate pairs escaped, so a
 * batch need not be read as strictly as what is stored field by field; and it may be large.
 */
function parseBatch(bytes: Buffer): unknown {
  if (bytes.length > 0 && isUtf8(bytes)) {
    const text = bytes.toString();
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {}
    if (value !== undefined) {
      if (longNumber.test(text)) checkNumbers(text);
      return value;
    }
  }
  throw new Problem(400, 'The body is not JSON.', { code: 'not-json' });
}

/** What could be a number that is another one when it has been read. */
const longNumber = /[:[,]\s*-?[0-9][0-9.]*(?:[0-9]{15}|[eE]\+?[0-9]{2})/;

/** @throws Problem 422 for a number that would be sent as another one: an identifier of 64 bits, say, or `1e400` */
function checkNumbers(text: string): void {
  let wrong: string | undefined;
  const look = (_name: string, value: unknown, { source = '' }: { source?: string } = {}) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    if (!Number.isFinite(value) || (/^-?[0-9]+$/.test(source) && String(value) !== source)) wrong ??= source;
    return value;
  };
  try {
    JSON.parse(text, look);
  } catch (cause) {
    // Nested deeper than the stack.
    throw new Problem(422, 'The body is nested too deep.', { code: 'too-deep', cause });
  }
  if (wrong === undefined) return;
  const message = `has the number ${wrong.slice(0, 40)}, which cannot be kept as it is written: send it as a text`;
  throw bodyProblem([{ pointer: '', message, code: 'inexact-number' }]);
}

interface Batch {
  events: PublishedEvent[];
  /** Indexes of those whose id the publisher chose. */
  chosen: number[];
}

function readBatch(body: unknown, catalogue: Catalogue): Batch {
  const isArray = Array.isArray(body);
  const items: unknown[] = isArray ? body : [body];
  if (items.length === 0) throw bodyProblem([{ pointer: '', message: 'must have at least one event' }]);
  if (items.length > batchEventsMax) {
    throw bodyProblem([
      { pointer: '', message: `may have ${batchEventsMax} events at most`, code: 'batch-too-large' },
    ]);
  }
  const faults: BodyFault[] = [];
  const batch: Batch = { events: [], chosen: [] };
  for (const [index, item] of items.entries()) {
    const event = readEvent(item, isArray ? `/${index}` : '', catalogue, faults);
    if (faults.length >= faultsMax) break;
    if (event === undefined) continue;
    if (event.id === '') event.id = newId();
    else batch.chosen.push(index);
    batch.events.push(event);
  }
  if (faults.length > 0) throw bodyProblem(faults);
  return batch;
}

const fields = new Set(['kind', 'account', 'body', 'id']);

/** @returns the event, its id empty where the publisher chose none */
function readEvent(
  item: unknown,
  pointer: string,
  catalogue: Catalogue,
  faults: BodyFault[],
): PublishedEvent | undefined {
  const count = faults.length;
  const fault = (at: string, message: string, code?: string) => {
    faults.push({ pointer: pointer + at, message, ...(code === undefined ? {} : { code }) });
  };
  if (typeof item !== 'object' || item === null || Array.isArray(item)) {
    fault('', 'must be an object');
    return undefined;
  }
  const { kind, account, body, id } = item as Record<string, unknown>;
  for (const name of Object.keys(item)) {
    if (!fields.has(name))
      fault(`/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, 'is not a known property');
  }
  if (typeof account !== 'string' || !isId(account)) fault('/account', 'must be the id of an account');
  if (id !== undefined && !isEventId(id))
    fault('/id', `must be 1 to ${idCharactersMax} visible ASCII characters`);
  const declared = typeof kind === 'string' ? catalogue.kinds.get(kind) : undefined;
  if (declared === undefined || declared.isBuiltIn) fault('/kind', 'must be a declared kind', 'unknown-kind');
  else if (body === undefined) fault('/body', 'is required');
  else if (isDeeper(body, jsonDepthMax)) {
    fault('/body', `may be nested ${jsonDepthMax} deep at most`, 'too-deep');
  } else faults.push(...catalogue.faultsOf(declared.name, body, `${pointer}/body`));
  if (faults.length > count || declared === undefined) return undefined;
  const bytes = Buffer.from(JSON.stringify(body));
  if (bytes.length > eventBodyBytesMax) {
    throw new Problem(413, `The body of an event may have ${eventBodyBytesMax} bytes at most.`, {
      code: 'event-too-large',
      errors: [{ pointer: `${pointer}/body`, message: `may have ${eventBodyBytesMax} bytes at most` }],
    });
  }
  return {
    id: (id as string | undefined) ?? '',
    accountId: account as string,
    kind: declared.name,
    body: bytes,
  };
}

/** What is nested without end would be read by subscribers, and by the delivery log, with a stack that has one. */
function isDeeper(value: unknown, depth: number): boolean {
  if (typeof value !== 'object' || value === null) return false;
  if (depth === 0) return true;
  const members = Array.isArray(value) ? value : Object.values(value);
  return members.some((member) => isDeeper(member, depth - 1));
}

/** Whether it can be the id of an event: what a publisher may choose; what the server makes is of this form, too. */
export function isEventId(id: unknown): id is string {
  return typeof id === 'string' && /^[\x21-\x7e]+$/.test(id) && id.length <= idCharactersMax;
}

/** An event of an account that does not exist would be lost in silence. */
async function checkAccounts(
  db: Database | Transaction,
  events: PublishedEvent[],
  isArray: boolean,
): Promise<void> {
  const accounts = [...new Set(events.map(({ accountId }) => accountId))];
  const { rows } = await sql<{ id: string }>`
    select id from accounts where id = any(${accounts}::uuid[])`.execute(db);
  if (rows.length === accounts.length) return;
  const known = new Set(rows.map(({ id }) => id));
  const faults = events
    .map(({ accountId }, index) => ({ accountId, index }))
    .filter(({ accountId }) => !known.has(accountId))
    .slice(0, faultsMax)
    .map(({ index }) => ({
      pointer: `${isArray ? `/${index}` : ''}/account`,
      message: 'must be the id of an account',
      code: 'unknown-account',
    }));
  throw bodyProblem(faults);
}

/**
 * Writes a batch in one transaction.
 * @param chosen indexes of the events whose id the publisher chose
 * @param isArray whether a list was sent: how the place of a fault is named
 * @returns those that are new
 * @throws Problem 422 where an account does not exist, or a chosen id belongs to an event with another content
 */
export async function storeEvents(
  db: Database | Transaction,
  events: PublishedEvent[],
  chosen: number[],
  isArray: boolean,
): Promise<StoredEvent[]> {
  // One statement is a transaction by itself.
  if (chosen.length === 0) return insertEvents(db, events, isArray);
  return inTransaction(db, async (tx) => {
    await checkAccounts(tx, events, isArray);
    const isTaken = await takeIds(tx, events, chosen, isArray);
    const fresh = events.filter((_event, index) => !isTaken.has(index));
    return fresh.length === 0 ? [] : insertEvents(tx, fresh, isArray);
  });
}

/** @returns indexes of the events that are there already */
async function takeIds(
  tx: Transaction,
  events: PublishedEvent[],
  chosen: number[],
  isArray: boolean,
): Promise<Set<number>> {
  const contents = new Map<string, { content: string; index: number }>();
  const taken = new Set<number>();
  for (const index of chosen) {
    const event = events[index] as PublishedEvent;
    const content = contentOf(event);
    const twin = contents.get(event.id);
    if (twin === undefined) contents.set(event.id, { content, index });
    else if (twin.content === content) taken.add(index);
    else throw reusedId(index, isArray);
  }
  // Sorted, so that two batches with the same ids wait for each other and never in a circle.
  const ids = [...contents.keys()].sort();
  const { rows: added } = await sql<{ id: string }>`
    insert into event_ids (id, content)
    select id, decode(content, 'hex')
    from unnest(${ids}::text[], ${ids.map((id) => contents.get(id)?.content)}::text[]) as given (id, content)
    order by id
    on conflict (id) do nothing
    returning id`.execute(tx);
  const fresh = new Set(added.map(({ id }) => id));
  const old = ids.filter((id) => !fresh.has(id));
  if (old.length === 0) return taken;
  const { rows } = await sql<{ id: string; content: string }>`
    select id, encode(content, 'hex') as content from event_ids where id = any(${old}::text[])`.execute(tx);
  for (const { id, content } of rows) {
    const given = contents.get(id) as { content: string; index: number };
    if (given.content !== content) throw reusedId(given.index, isArray);
    taken.add(given.index);
  }
  return taken;
}

function reusedId(index: number, isArray: boolean): Problem {
  return bodyProblem([
    {
      pointer: `${isArray ? `/${index}` : ''}/id`,
      message: 'is the id of another event already',
      code: 'id-reused',
    },
  ]);
}

function contentOf({ kind, accountId, body }: PublishedEvent): string {
  return createHash('sha256').update(`${kind}\n${accountId}\n`).update(body).digest('hex');
}

async function insertEvents(
  db: Database | Transaction,
  events: PublishedEvent[],
  isArray: boolean,
): Promise<StoredEvent[]> {
  const traceparent = activeTraceparent();
  const accounts = [...new Set(events.map(({ accountId }) => accountId))];
  // Positions first, in the order of the events: nothing needs to come back from what is added and be sorted again.
  const { rows } = await sql<{ day: string; first: string; positions: string | null; created_at: Date }>`
    with known as materialized (
      select count(*) as count from unnest(${uuidArray(accounts)}::uuid[]) as given (id)
      where exists (select from accounts where id = given.id offset 0)
    ),
    place as materialized (
      select array(select nextval('event_positions') from generate_series(1, ${events.length}::int)) as positions
      from known where count = ${accounts.length}::int
    ),
    added as (
      insert into events (day, position, id, account_id, kind, body, created_at, traceparent)
      select (now() at time zone 'utc')::date, position, id, account_id, kind, body, statement_timestamp(),
        ${traceparent}::text
      from (
        select unnest(place.positions) as position,
          unnest(${textArray(events.map(({ id }) => id))}::text[]) as id,
          unnest(${uuidArray(events.map(({ accountId }) => accountId))}::uuid[]) as account_id,
          unnest(${textArray(events.map(({ kind }) => kind))}::text[]) as kind,
          unnest(${textArray(events.map(({ body }) => body))}::text[]) as body
        from place
      ) as given
    ),
    -- One row for each account: accounts take turns.
    waiting as (
      insert into outbox (day, turn, positions)
      select (now() at time zone 'utc')::date, account_id, array_agg(position order by position)
      from (
        select unnest(place.positions) as position,
          unnest(${uuidArray(events.map(({ accountId }) => accountId))}::uuid[]) as account_id
        from place
      ) as given
      group by account_id
    )
    select (now() at time zone 'utc')::date::text as day, positions[1] as first, statement_timestamp() as created_at,
      -- Told one by one only where others took some in between.
      case when positions[cardinality(positions)] - positions[1] >= cardinality(positions)
        then array_to_string(positions, ',') end as positions
    from place`.execute(db);
  if (rows[0] === undefined) {
    await checkAccounts(db, events, isArray);
    // There by now.
    return insertEvents(db, events, isArray);
  }
  const { day, first, positions, created_at: createdAt } = rows[0];
  const told = positions?.split(',');
  return events.map((event, index) => ({
    ...event,
    day,
    position: told === undefined ? Number(first) + index : Number(told[index]),
    createdAt,
    traceparent,
  }));
}
