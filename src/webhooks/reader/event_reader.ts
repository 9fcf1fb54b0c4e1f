/**
 * Reads a subscription's events after a sequence, in order. Sequences of a lane have no gaps and become visible in order, so
 * every sequence up to the newest is in one of two places: in the items, or in a gap that says why it is missing. Each page is read
 * from the database again, with the rights of that moment.
 *
 *   page (items, gaps, where to go on) → page … | terminated (the subscription ended or is disabled) | ahead (no such sequence yet)
 */

import type { KeyObject } from 'node:crypto';
import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import { currentUser } from '../../database/connection_user.ts';
import type { Database } from '../../database/database.ts';
import { undivided } from '../../shared/owner_turns.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import { type DueDelivery, readEventFacts, readEvents, readNewDeliveries } from '../lanes/due_deliveries.ts';
import { type ConversionTurn, type Pace, turnBytesMax } from '../sending/conversion_turns.ts';
import { PostponedError } from '../sending/converter.ts';
import { buildMessage, type DeploymentSigners, type EventContent } from '../sending/delivery_request.ts';
import type { Presenter } from '../sending/presentation.ts';
import { createSigningKeys, type SigningKeys } from '../sending/secret_keys.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import { DeliveryIds } from '../subscriptions/delivery_id.ts';
import type { Subscription, SubscriptionRow } from '../subscriptions/subscription.ts';
import { openSecrets, type SecretRow } from '../subscriptions/subscription_secrets.ts';
import { isOpen } from './lane_state.ts';
import { PageSlices } from './page_turns.ts';

/** Maximum bytes of bodies on one page. A single larger event comes alone. A page that needs conversions has less. */
const pageBytesMax = 2_097_152;
/** Milliseconds after which the rights to a page are read again before it is sent: its events may have waited to be converted or signed. */
const staleMs = 100;

/** Sequences that are not among the items. */
export interface Gap {
  from: number;
  through: number;
  /**
   * Older than the retention; or the owner has no right to the events, or they were erased; or their bodies could not be converted to the
   * subscription's version.
   */
  reason: 'expired' | 'cancelled' | 'failed';
}

export interface ReadItem {
  sequence: number;
  event: EventContent;
  /** The headers of a delivery, without the subscription's static headers, which are secret. */
  headers: Record<string, string>;
  /** The body of a delivery: JSON text. */
  body: Buffer;
}

export interface EventPage {
  kind: 'page';
  items: ReadItem[];
  /** In order, before, between and after the items. */
  gaps: Gap[];
  /** The last sequence that the items or gaps contain; the next page begins after it. */
  through: number;
  /** The newest sequence. */
  head: number;
}

export type ReadResult = EventPage | { kind: 'terminated' } | { kind: 'ahead'; head: number };

export interface EventReaderOptions {
  db: Database;
  kinds: KindArrays;
  sealer: Sealer;
  headerNames: HeaderNames;
  signers: DeploymentSigners;
  presenter: Presenter;
}

/** The subscription as it is now: a stream outlives changes. */
interface LaneRow extends SecretRow, Pick<SubscriptionRow, 'format' | 'version' | 'signature'> {
  head: string;
  epochs: string | null;
  /** Milliseconds since 1970, by the database's clock. */
  now: number;
}

/** Where a page begins, and how large it may be. */
export interface PageRange {
  after: number;
  limit: number;
  bytesMax?: number;
  /** Ends the wait for conversions, as the end of the client does. */
  signal?: AbortSignal;
}

export class EventReader {
  readonly #options: EventReaderOptions;

  constructor(options: EventReaderOptions) {
    this.#options = options;
  }

  /**
   * Reads the page after `after`: at most `limit` items, and `bytesMax` bytes of bodies.
   * @throws Problem 503 or NoTurnError if others keep the thread of the conversions that it needs
   */
  read(subscription: Pick<Subscription, 'id' | 'lane'>, range: PageRange): Promise<ReadResult> {
    const { turns } = this.#options.presenter;
    return turns.run(
      String(subscription.lane),
      (turn) => this.#read(subscription, range, turn),
      range.signal,
    );
  }

  /** @returns the pace of the conversions that the page needs if it is not that of the turn */
  async #read(
    subscription: Pick<Subscription, 'id' | 'lane'>,
    { after, limit, bytesMax = pageBytesMax }: PageRange,
    turn: ConversionTurn | null,
  ): Promise<ReadResult | Pace> {
    const { lane } = subscription;
    const { db, kinds } = this.#options;
    const row = await this.#readLane(lane);
    if (row === undefined) return { kind: 'terminated' };
    const head = Number(row.head);
    if (after > head) return { kind: 'ahead', head };
    const upTo = Math.min(head, after + limit);
    if (upTo === after) return { kind: 'page', items: [], gaps: [], through: after, head };
    const readAt = performance.now();
    const found = await readNewDeliveries(db, kinds, [{ lane, after, upTo }]);
    if (found.length === 0) {
      const through = ((await this.#firstKept(lane, after)) ?? head + 1) - 1;
      const gaps: Gap[] = [{ from: after + 1, through, reason: 'expired' }];
      return { kind: 'page', items: [], gaps, through, head };
    }
    // The subscription or its account was disabled since its row was read.
    if (found.some(({ isSuspended }) => isSuspended)) return { kind: 'terminated' };
    const fitting = withinBytes(found, turn === null ? bytesMax : Math.min(bytesMax, turnBytesMax));
    const pace = turn === null ? await this.#paceOf(row, fitting) : 'none';
    if (pace !== 'none') return pace;
    const shown = await this.#show(row, fitting, await readEvents(db, fitting), turn);
    // The first conversion of a turn is postponed only if it needs the careful line.
    if (fitting.length > 0 && shown.count === 0) return 'careful';
    const present = this.#present(subscription, row);
    const slices = new PageSlices(currentUser() ?? undivided(String(lane)));
    const held = new Set(fitting.slice(0, shown.count));
    const page = await divide(found, shown.events, after, upTo, held, present, slices);
    if (performance.now() - readAt > staleMs && !(await this.#areAllowed(lane, after, page))) return 'none';
    return { kind: 'page', ...page, head };
  }

  /** Whether all items of a page may still be read. */
  async #areAllowed(
    lane: number,
    after: number,
    page: Pick<EventPage, 'items' | 'through'>,
  ): Promise<boolean> {
    const { db, kinds } = this.#options;
    const found = await readNewDeliveries(db, kinds, [{ lane, after, upTo: page.through }]);
    const allowed = new Set(
      found.flatMap(({ sequence, isAllowed, isSuspended }) => (isAllowed && !isSuspended ? [sequence] : [])),
    );
    return page.items.every(({ sequence }) => allowed.has(sequence));
  }

  /** The pace of the first conversion of a page. */
  async #paceOf(
    revision: Pick<Subscription, 'format' | 'version'>,
    fitting: readonly DueDelivery[],
  ): Promise<Pace> {
    const { presenter, db } = this.#options;
    if (!presenter.mayConvert(revision)) return 'none';
    const facts = await readEventFacts(db, fitting);
    return facts.map((event) => presenter.paceOf(revision, event)).find((pace) => pace !== 'none') ?? 'none';
  }

  /**
   * The events as the subscription gets them. Null for those that cannot be converted.
   * @returns with the count of the first deliveries whose conversions the turn has
   */
  async #show(
    revision: Pick<Subscription, 'format' | 'version'>,
    fitting: readonly DueDelivery[],
    events: ReadonlyMap<number, EventContent>,
    turn: ConversionTurn | null,
  ): Promise<{ events: Map<number, EventContent | null>; count: number }> {
    const { presenter } = this.#options;
    const shown = new Map<number, EventContent | null>();
    const show = async ({ event: position }: DueDelivery): Promise<boolean> => {
      const event = events.get(position);
      if (event === undefined || shown.has(position)) return true;
      try {
        shown.set(position, await presenter.present(revision, event, turn ?? undefined));
      } catch (error) {
        if (error instanceof PostponedError) return false;
        // The presenter has reported the error.
        shown.set(position, null);
      }
      return true;
    };
    const [first, ...others] = fitting;
    if (first === undefined || !(await show(first))) return { events: shown, count: 0 };
    // All of them at once: each would wait for one of another account.
    const have = await Promise.all(others.map(show));
    const count = have.indexOf(false);
    return { events: shown, count: count < 0 ? fitting.length : count + 1 };
  }

  async #readLane(lane: number): Promise<LaneRow | undefined> {
    const { db, kinds } = this.#options;
    const { rows } = await sql<LaneRow>`
      select s.id, s.format, s.version, s.signature, s.secret, s.previous_secret, s.previous_secret_until, newest_sequence(l) as head,
        (select string_agg(e.first || ' ' || e.tag, ',') from lane_epochs e where e.lane = s.lane) as epochs,
        (extract(epoch from clock_timestamp()) * 1000)::float8 as now
      from subscriptions s join lanes l on l.id = s.lane
      where s.lane = ${lane}::bigint and ${isOpen(kinds.appSubscriptions)}`.execute(db);
    return rows[0];
  }

  /** The first sequence after `after` that retention has kept. */
  async #firstKept(lane: number, after: number): Promise<number | undefined> {
    const { rows } = await sql<{ sequence: string }>`
      select sequence from deliveries where lane = ${lane}::bigint and sequence > ${after}::bigint
      order by sequence limit 1`.execute(this.#options.db);
    return rows[0] && Number(rows[0].sequence);
  }

  #present(subscription: Pick<Subscription, 'id' | 'lane'>, row: LaneRow): Present {
    const { headerNames, signers, sealer } = this.#options;
    const epochs = (row.epochs?.split(',') ?? []).map((text) => {
      const [first, tag] = text.split(' ');
      return { first: Number(first), tag: Number(tag) };
    });
    const ids = new DeliveryIds(subscription.lane, subscription.id, epochs);
    const keys: SigningKeys = createSigningKeys(openSecrets(row, sealer), row.signature);
    const now = Math.floor(row.now);
    const ofNow: readonly KeyObject[] = row.signature === 'ed25519' ? signers(now) : [];
    return (sequence, event) => {
      const facts = { sequence, number: 1, now };
      const message = buildMessage(row, ids, keys, headerNames, event, facts, () => ofNow);
      return { sequence, event, headers: headersOf(message.lines), body: message.body };
    };
  }
}

type Present = (sequence: number, event: EventContent) => ReadItem;

/** The deliveries whose events fit on the page, by the sizes that the first read found. */
function withinBytes(found: readonly DueDelivery[], bytesMax: number): DueDelivery[] {
  let bytes = 0;
  const fitting: DueDelivery[] = [];
  for (const delivery of found) {
    if (!delivery.isAllowed) continue;
    bytes += delivery.bytes;
    if (bytes > bytesMax && fitting.length > 0) break;
    fitting.push(delivery);
  }
  return fitting;
}

/** Divides the sequences into items and gaps. Ends before the first event that does not fit. @param fitting those that do */
async function divide(
  found: readonly DueDelivery[],
  events: ReadonlyMap<number, EventContent | null>,
  after: number,
  upTo: number,
  fitting: ReadonlySet<DueDelivery>,
  present: Present,
  slices: PageSlices,
): Promise<Pick<EventPage, 'items' | 'gaps' | 'through'>> {
  const items: ReadItem[] = [];
  const gaps: Gap[] = [];
  let through = after;
  const miss = (upTo: number, reason: Gap['reason']): void => {
    if (upTo <= through) return;
    const last = gaps.at(-1);
    if (last?.reason === reason && last.through === through) last.through = upTo;
    else gaps.push({ from: through + 1, through: upTo, reason });
    through = upTo;
  };
  for (const delivery of found) {
    miss(delivery.sequence - 1, 'expired');
    const event = events.get(delivery.event);
    if (delivery.isAllowed && !fitting.has(delivery)) return { items, gaps, through };
    if (event === null) miss(delivery.sequence, 'failed');
    // An event that was allowed and is not there was erased meanwhile.
    else if (!delivery.isAllowed || event === undefined) miss(delivery.sequence, 'cancelled');
    else {
      if (slices.isOver) await slices.next();
      items.push(present(delivery.sequence, event));
      through = delivery.sequence;
    }
  }
  miss(upTo, 'expired');
  return { items, gaps, through };
}

function headersOf(lines: string): Record<string, string> {
  const pairs = lines.split('\r\n').filter((line) => line !== '');
  return Object.fromEntries(
    pairs.map((line) => {
      const colon = line.indexOf(': ');
      return [line.slice(0, colon), line.slice(colon + 2)];
    }),
  );
}
