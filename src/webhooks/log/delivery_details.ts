/** Reads one delivery with its body and its attempts. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import type { Pace } from '../sending/conversion_turns.ts';
import { PostponedError } from '../sending/converter.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import type { Presenter } from '../sending/presentation.ts';
import type { SignatureShape } from '../subscriptions/signature.ts';
import type { Format, Owner } from '../subscriptions/subscription.ts';
import {
  type Delivery,
  type DeliveryRow,
  locateDelivery,
  type Place,
  selectDeliveries,
  toDelivery,
} from './delivery.ts';
import {
  type RecordedEvent,
  type RecordedRequest,
  type RequestNames,
  recordRequest,
} from './recorded_request.ts';

/** Attempts that are shown, the newest. A thousand take 6 MB as JSON. */
const shownMax = 100;
/** Bytes of responses that are shown, of the newest attempts, as stored and also as JSON: all clients of a node share its server thread. */
export const responseBytesMax = 262_144;

export interface DeliveryDetails extends Delivery {
  /** The body that was sent; null if it was erased. */
  body: string | null;
  /** The newest, the oldest of them first. */
  attempts: Attempt[];
}

export interface Attempt {
  number: number;
  trigger: 's' | 'm' | 'r';
  startedAt: Date;
  durationMs: number;
  firstByteMs: number | null;
  status: number | null;
  error: string | null;
  revision: number;
  connection: Record<string, unknown> | null;
  /** Rebuilt from the subscription's revision; null if that revision is no longer stored. */
  request: RecordedRequest | null;
  responseHeaders: Record<string, unknown> | null;
  responseBody: Buffer | null;
  isTruncated: boolean;
  /** Whether the response was not stored because the account's daily budget was used up, or is not shown for its size. */
  isResponseOmitted: boolean;
}

interface AttemptRow {
  number: number;
  trigger: 's' | 'm' | 'r';
  started_at: Date;
  duration_ms: number;
  first_byte_ms: number | null;
  status: number | null;
  error: string | null;
  revision: number;
  connection: string | null;
  headers: string | null;
  body: Buffer | null;
  truncated: boolean;
  response_omitted: boolean | null;
  url: string | null;
  signature: SignatureShape;
  format: Format;
  version: string | null;
  header_names: string[] | null;
  agent_key: string | null;
}

/**
 * @param scopeOf the scope that a kind requires; null for none. Shows the body of a delivery that was never sent only if the
 *   owner may get the event now. The right to it may have ended while it was held.
 */
export async function readDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  names: RequestNames,
  presenter: Presenter,
  scopeOf: (kind: string) => string | null,
): Promise<DeliveryDetails | undefined> {
  const place = await locateDelivery(db, owner, id);
  if (place === undefined) return undefined;
  return presenter.turns.run(String(place.subscription.lane), async (turn) => {
    const pace = turn === null ? await readPace(db, place, presenter) : 'none';
    if (pace !== 'none') return pace;
    // All versions are of one body, so a careful turn has all of them.
    const present: Present = (revision, event) =>
      presenter.present(revision, event, turn?.isQuick ? turn : undefined);
    return readInTurn(db, place, names, present, scopeOf).catch((error: unknown) => {
      if (error instanceof PostponedError) return 'careful';
      throw error;
    });
  });
}

type Present = (
  revision: Pick<AttemptRow, 'format' | 'version'>,
  event: EventContent,
) => EventContent | Promise<EventContent>;

/** The pace of the conversions that the attempts need. Reads neither the body nor responses. */
async function readPace(
  db: Database | Transaction,
  { subscription: { lane }, sequence }: Place,
  presenter: Presenter,
): Promise<Pace> {
  if (!presenter.mayConvert({ format: 'json', version: null })) return 'none';
  const { rows } = await sql<{
    kind: string;
    event_version: string | null;
    account_id: string | null;
    format: Format;
    version: string | null;
  }>`
    select distinct e.kind, e.version as event_version, e.account_id, s.format, s.version
    from deliveries d
    cross join lateral (
      select kind, version, account_id from events where day = d.day and position = d.event and body is not null offset 0
    ) as e
    cross join lateral (
      select revision from attempts where lane = d.lane and sequence = d.sequence and day = d.day
      order by started_at desc, number desc limit ${shownMax}::int
    ) as a
    join subscription_revisions s on s.lane = d.lane and s.revision = a.revision
    where d.lane = ${lane} and d.sequence = ${sequence}`.execute(db);
  const paces = rows.map(({ kind, event_version, account_id, ...revision }) =>
    presenter.paceOf(revision, { kind, version: event_version, accountId: account_id }),
  );
  return (['careful', 'quick'] as const).find((pace) => paces.includes(pace)) ?? 'none';
}

async function readInTurn(
  db: Database | Transaction,
  { subscription, sequence }: Place,
  names: RequestNames,
  present: Present,
  scopeOf: (kind: string) => string | null,
): Promise<DeliveryDetails | undefined> {
  const { rows } = await sql<
    DeliveryRow & { day: string; body: string | null; happened_at: Date } & {
      account_id: string | null;
      event_version: string | null;
      external_id: string | null;
    }
  >`
    select d.*, d.day::text as day, e.body, e.account_id, e.event_version, e.happened_at,
      (select external_id from accounts where id = e.account_id) as external_id
    from (${selectDeliveries(subscription.lane, sql`d.sequence = ${sequence}`)}) as d
    cross join lateral (
      select body, account_id, version as event_version, created_at as happened_at
      from events where day = d.day and position = d.event offset 0
    ) as e`.execute(db);
  const row = rows[0];
  if (row === undefined) return undefined;
  const delivery = toDelivery(row, subscription.id);
  const wasSent = delivery.attemptCount > 0;
  const isShown = wasSent || (await mayGet(db, subscription.lane, row.account_id, scopeOf(row.kind)));
  if (!isShown) row.body = null;
  const event: RecordedEvent = {
    id: row.event_id,
    kind: row.kind,
    version: row.event_version,
    accountId: row.account_id,
    accountExternalId: row.external_id,
    body: row.body === null ? null : Buffer.from(row.body),
    createdAt: row.happened_at.getTime(),
    traceparent: null,
  };
  const { rows: attempts } = await sql<AttemptRow>`
    select a.number, a.trigger, a.started_at, a.duration_ms, a.first_byte_ms, a.status, a.error, a.revision, a.connection,
      a.truncated, case when a.is_shown then a.headers end as headers, case when a.is_shown then a.body end as body,
      a.response_omitted or (not a.is_shown and a.headers is not null) as response_omitted,
      s.url, s.signature, s.format, s.version, s.header_names,
      (select key from agent_subscriptions where id = ${subscription.id} and s.format = 'agent') as agent_key
    from (
      select *, sum(coalesce(octet_length(headers), 0) + coalesce(octet_length(body), 0))
        over (order by started_at desc, number desc) <= ${responseBytesMax} as is_shown
      from (
        select * from attempts
        where lane = ${subscription.lane} and sequence = ${sequence} and day = ${row.day}::date
        order by started_at desc, number desc limit ${shownMax}::int
      ) as newest
    ) as a left join subscription_revisions s on s.lane = a.lane and s.revision = a.revision
    order by a.started_at, a.number`.execute(db);
  const content = row.body === null ? null : { ...event, body: Buffer.from(row.body) };
  const shown = await Promise.all(
    attempts.map((attempt) => presentRecorded(present, attempt, content, event)),
  );
  return {
    ...delivery,
    body: row.body,
    attempts: attempts.map((attempt, index) => ({
      number: attempt.number,
      trigger: attempt.trigger,
      startedAt: attempt.started_at,
      durationMs: attempt.duration_ms,
      firstByteMs: attempt.first_byte_ms,
      status: attempt.status,
      error: attempt.error,
      revision: attempt.revision,
      connection: attempt.connection === null ? null : JSON.parse(attempt.connection),
      request:
        attempt.url === null
          ? null
          : recordRequest(
              {
                url: attempt.url,
                signature: attempt.signature,
                format: attempt.format,
                headerNames: attempt.header_names ?? [],
                agentKey: attempt.agent_key,
              },
              delivery,
              { number: attempt.number, startedAt: attempt.started_at },
              shown[index] as RecordedEvent,
              names,
            ),
      responseHeaders: attempt.headers === null ? null : JSON.parse(attempt.headers),
      responseBody: attempt.body,
      isTruncated: attempt.truncated,
      isResponseOmitted: attempt.response_omitted ?? false,
    })),
  };
}

/** The event as the attempt had it. The body is null if it was erased or cannot be converted. */
async function presentRecorded(
  present: Present,
  revision: Pick<AttemptRow, 'format' | 'version'>,
  content: EventContent | null,
  event: RecordedEvent,
): Promise<RecordedEvent> {
  if (content === null) return event;
  try {
    return await present(revision, content);
  } catch (error) {
    if (error instanceof PostponedError) throw error;
    return { ...event, body: null };
  }
}

/** Whether the owner of a lane may now get an account's events that require a scope. */
async function mayGet(
  db: Database | Transaction,
  lane: number,
  accountId: string | null,
  scope: string | null,
): Promise<boolean> {
  if (accountId === null) return true;
  const { rows } = await sql`
    select from subscriptions s
    where s.lane = ${lane} and (s.owner = 'user' or exists (
      select from grants g
      where (g.id = s.grant_id
          or (s.owner = 'client' and g.account_id = ${accountId} and g.client_id = s.client_id))
        and g.withdrawn_at is null and (${scope}::text is null or g.scopes @> array[${scope}::text])))`.execute(
    db,
  );
  return rows.length > 0;
}
