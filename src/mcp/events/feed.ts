/**
 * What `events/poll` and `events/stream` have in common: the lane of a grant, kind and arguments, created by the first request and kept while
 * it is used, and the page after a cursor. A page is read from the log with the rights of that moment.
 *
 *   cursor → live lane (the cursor's | another one, with a replay | a new one) → page → occurrences with cursors
 */

import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import type { Principal } from '../../grants/principal.ts';
import {
  type AgentLane,
  type AgentLaneFinder,
  createAgentLaneFinder,
  findResumePoint,
  readAgentEnd,
  resumeInLane,
} from '../../webhooks/reader/agent_lane.ts';
import type { EventPage, EventReader, PageRange } from '../../webhooks/reader/event_reader.ts';
import type { LaneWatch } from '../../webhooks/reader/lane_watch.ts';
import type { AgentCursors, AgentPlace } from '../../webhooks/subscriptions/agent_cursor.ts';
import { agentKey } from '../../webhooks/subscriptions/agent_key.ts';
import {
  createAgentSubscription,
  renewAgentSubscription,
} from '../../webhooks/subscriptions/agent_subscription.ts';
import type { AppSubscriptions } from '../../webhooks/subscriptions/app_subscription_modes.ts';
import { makeSecret } from '../../webhooks/subscriptions/signature.ts';
import { setVersion } from '../../webhooks/subscriptions/subscription.ts';
import { QuotaExceeded, type SubscriptionQuotas } from '../../webhooks/subscriptions/subscription_quotas.ts';
import type { RpcError } from '../json_rpc.ts';
import type { AgentEventSettings } from '../settings.ts';
import { readArguments } from './arguments.ts';
import { type EventErrors, refusedParams } from './errors.ts';
import type { AgentKind } from './kinds.ts';
import type { ResumeTurns } from './resume_turns.ts';

export interface FeedOptions {
  db: Database;
  /** By name. */
  kinds: ReadonlyMap<string, AgentKind>;
  /** The newest version of the kinds; null if none has versions. */
  newestVersion: string | null;
  settings: AgentEventSettings;
  quotas: SubscriptionQuotas;
  appSubscriptions: AppSubscriptions;
  sealer: Sealer;
  cursors: AgentCursors;
  reader: EventReader;
  watch: LaneWatch;
  errors: EventErrors;
  turns: ResumeTurns;
  /** Call it after a replay was stored. */
  recover: () => void;
}

/** How long a lane lives after its last use, and how much of that may pass before a use prolongs it. Streams are shorter. */
const laneMs = 24 * 3_600_000;
const renewAfterMs = 3_600_000;
const maxAgeMsMax = 366 * 86_400_000;
/** A lane can expire between two statements. Then the next round creates it. */
const roundsMax = 5;
/** How often to ask again while three replays of a lane are running, in milliseconds. */
const busyMs = 5_000;

/** What a request asks for. */
export interface FeedRequest {
  kind: AgentKind;
  grantId: string;
  accountId: string;
  clientId: string;
  /** Canonical JSON. */
  arguments: string;
  filter: ReturnType<typeof readArguments>['filter'];
  /** Null to begin now. */
  place: (AgentPlace & { /** As it was given. */ cursor: string }) | null;
  /** Null for no limit. */
  maxAgeMs: number | null;
  /** Milliseconds since 1970: the limit when the request came. A stream gets later events whatever their age. */
  notBefore: number;
}

/** A place in a live lane. */
export interface FeedPlace {
  lane: AgentLane;
  /** The last sequence that the agent has. */
  after: number;
  /** Whether it begins later than the agent asked. */
  isTruncated: boolean;
}

export class Feeds {
  readonly #options: FeedOptions;
  readonly #findLane: AgentLaneFinder;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#findLane = createAgentLaneFinder(options.db, options.appSubscriptions);
  }

  /**
   * Reads the parameters of a request.
   * @param kind its kind, whose scope the principal has
   * @throws RpcError
   */
  readRequest(kind: AgentKind, principal: Principal, params: Readonly<Record<string, unknown>>): FeedRequest {
    const { grantId, accountId, clientId } = principal;
    if (grantId === null || accountId === null) {
      throw this.#options.errors.create('Forbidden', { reason: 'user_required' });
    }
    const { canonical, filter } = readArguments(kind, params.arguments);
    const maxAgeMs = readInteger('maxAgeMs', params.maxAgeMs, 0, maxAgeMsMax) ?? null;
    const notBefore = maxAgeMs === null ? Number.NEGATIVE_INFINITY : Date.now() - maxAgeMs;
    const request = { kind, grantId, accountId, clientId, arguments: canonical, filter, maxAgeMs, notBefore };
    return { ...request, place: this.#readPlace(request, params.cursor ?? null) };
  }

  #readPlace(request: Omit<FeedRequest, 'place'>, cursor: unknown): FeedRequest['place'] {
    if (cursor === null) return null;
    if (typeof cursor !== 'string') throw refusedParams('cursor', 'invalid_type');
    const place = this.#options.cursors.read(bindingOf(request), cursor);
    if (place === undefined) throw refusedParams('cursor', 'invalid');
    return { ...place, cursor };
  }

  /**
   * Finds the lane of a request, or creates it, and where to read in it.
   * @throws RpcError Forbidden, ResourceExhausted
   */
  async open(request: FeedRequest): Promise<FeedPlace> {
    const { errors } = this.#options;
    const { place } = request;
    for (let round = 0; round < roundsMax; round += 1) {
      const lane = await this.#findLane(keyOf(request));
      if (lane === undefined) {
        await this.#create(request);
        continue;
      }
      if (!lane.isOpen) throw errors.create('Forbidden', { reason: 'suspended' });
      if (!(await this.#keep(lane))) continue;
      if (place === null) return { lane, after: lane.head, isTruncated: false };
      if (place.lane !== lane.lane) return this.#resume(lane, place, request);
      // A failover may have lost the newest deliveries.
      const isLost = place.sequence > lane.head;
      return { lane, after: isLost ? lane.head : place.sequence, isTruncated: isLost };
    }
    throw this.busy();
  }

  /** The lane of a request changes all the time. */
  busy(): RpcError {
    return this.#options.errors.create('ResourceExhausted', { limit: 'changes', retryAfterMs: busyMs });
  }

  /** Another request may have created it meanwhile. */
  async #create(request: FeedRequest): Promise<void> {
    const { db, sealer, quotas, settings, newestVersion, errors } = this.#options;
    const { kind, grantId, accountId, clientId } = request;
    const created = await createAgentSubscription(
      db,
      {
        owner: { kind: 'grant', grantId, accountId, clientId },
        ...{ mode: 'poll', key: keyOf(request), name: kind.name, arguments: request.arguments },
        ...{ scope: kind.scope, filter: request.filter, url: null, secret: makeSecret(), format: 'json' },
        ...{
          version: newestVersion,
          description: '',
          retrySchedule: null,
          lifetimeMs: laneMs,
          isVerified: false,
        },
      },
      sealer,
      quotas,
      settings,
    ).catch((error: unknown) => {
      throw error instanceof QuotaExceeded ? exhausted(errors, error) : error;
    });
    if (created === undefined) throw errors.create('Forbidden', { reason: 'access_revoked' });
  }

  /** Why a lane can be read no more. @returns undefined if it can be, or has expired */
  async endOf({ id }: Pick<AgentLane, 'id'>): Promise<{ notification: string; error: RpcError } | undefined> {
    const { db, appSubscriptions, errors } = this.#options;
    const end = await readAgentEnd(db, id, appSubscriptions);
    if (end === 'expired') return undefined;
    if (end === 'suspended') {
      return { notification: 'error', error: errors.create('Forbidden', { reason: 'suspended' }) };
    }
    const error = errors.create('Forbidden', { reason: 'access_revoked' });
    return end === 'revoked' ? { notification: 'terminated', error } : undefined;
  }

  /** Prolongs the life of a lane that is used. @returns false if it has ended meanwhile */
  async #keep({ id, version, expiresAt, now }: AgentLane): Promise<boolean> {
    const { db, newestVersion } = this.#options;
    if (newestVersion !== null && (version ?? '') < newestVersion) await setVersion(db, id, newestVersion);
    if (expiresAt.getTime() - now.getTime() > laneMs - renewAfterMs) return true;
    return (await renewAgentSubscription(db, id, laneMs)) !== undefined;
  }

  async #resume(lane: AgentLane, place: AgentPlace, request: FeedRequest): Promise<FeedPlace> {
    const { db, turns, recover } = this.#options;
    const resumed = await turns.run(request, async () =>
      resumeInLane(db, lane.lane, await findResumePoint(db, place, request.maxAgeMs)),
    );
    if (resumed === undefined) throw turns.busy();
    const { after, isTruncated, isStarted } = resumed;
    if (isStarted) recover();
    return { lane: { ...lane, isReplaying: lane.isReplaying || isStarted }, after, isTruncated };
  }

  /** Reads the page after a sequence. @returns undefined if the subscription has ended or is disabled, or lost deliveries */
  async read({ id, lane }: Pick<AgentLane, 'id' | 'lane'>, range: PageRange): Promise<EventPage | undefined> {
    const result = await this.#options.reader.read({ id, lane }, range);
    return result.kind === 'page' ? result : undefined;
  }

  /** Shows the items of a page that are new enough. */
  show(
    request: FeedRequest,
    lane: number,
    { items, gaps }: EventPage,
  ): { events: Occurrence[]; isTruncated: boolean } {
    const isNew = items.filter(({ event }) => event.createdAt >= request.notBefore);
    const events = isNew.map(({ sequence, event, body }) => {
      const at = new Date(event.createdAt);
      return {
        eventId: event.id,
        name: event.kind,
        timestamp: at.toISOString(),
        body,
        cursor: this.cursorAt(request, { lane, sequence, at }),
      };
    });
    const isLost = gaps.some(({ reason }) => reason === 'expired');
    return { events, isTruncated: isLost || isNew.length < items.length };
  }

  cursorAt(request: FeedRequest, place: AgentPlace): string {
    return this.#options.cursors.write(bindingOf(request), place);
  }

  get watch(): LaneWatch {
    return this.#options.watch;
  }
}

/** An event, which agents get as JSON (`occurrenceText`). */
export interface Occurrence {
  eventId: string;
  name: string;
  timestamp: string;
  /** JSON. */
  body: Buffer;
  cursor: string;
}

/** An occurrence as JSON. Its body is copied as it is. @param more further members */
export function occurrenceText(
  { eventId, name, timestamp, body, cursor }: Occurrence,
  more: object = {},
): string {
  const start = JSON.stringify({ eventId, name, timestamp }).slice(0, -1);
  return `${start},"data":${body.toString()},${JSON.stringify({ cursor, ...more }).slice(1)}`;
}

function keyOf({ grantId, kind, arguments: canonical }: FeedRequest): string {
  return agentKey({ principal: grantId, url: null, name: kind.name, arguments: canonical });
}

function bindingOf({ grantId, kind, arguments: canonical }: Omit<FeedRequest, 'place'>) {
  return { grantId, name: kind.name, arguments: canonical };
}

export function exhausted(errors: EventErrors, { quota: { name, limit } }: QuotaExceeded): RpcError {
  return errors.create('ResourceExhausted', { limit: name, max: limit });
}

/** @throws RpcError InvalidParams */
export function readInteger(field: string, value: unknown, min: number, max: number): number | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== 'number') throw refusedParams(field, 'invalid_type');
  if (!Number.isInteger(value) || value < min) throw refusedParams(field, 'invalid');
  return Math.min(value, max);
}
