/**
 * `events/subscribe` for a webhook: creates a subscription whose callback has echoed a challenge, or refreshes the one that has the same
 * identity. The challenge is sent outside any transaction, and nothing is stored before it.
 *
 *   no live subscription → challenge → created | another request created it → refreshed
 *   live → refreshed: new expiry and secret, without a challenge; what was held is sent
 */

import { sql } from 'kysely';
import type { Transaction } from '../../database/database.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { readAckedPlace, readAgentStatus } from '../../webhooks/log/agent_status.ts';
import { wakeLane } from '../../webhooks/log/resend.ts';
import { findResumePoint, type ResumePoint, resumeInLane } from '../../webhooks/reader/agent_lane.ts';
import { agentScheduleSeconds } from '../../webhooks/sending/delivery_policy.ts';
import type { Handshakes } from '../../webhooks/sending/handshake.ts';
import { releaseAgent } from '../../webhooks/subscriptions/agent_hold.ts';
import { agentKey } from '../../webhooks/subscriptions/agent_key.ts';
import {
  type AgentSubscription,
  createAgentSubscription,
  findAgentSubscription,
  renewAgentSubscription,
} from '../../webhooks/subscriptions/agent_subscription.ts';
import type { Owner } from '../../webhooks/subscriptions/owner.ts';
import { actAsOwner, lockSubscription, setVersion } from '../../webhooks/subscriptions/subscription.ts';
import { QuotaExceeded } from '../../webhooks/subscriptions/subscription_quotas.ts';
import { renewSecret } from '../../webhooks/subscriptions/subscription_secrets.ts';
import { type Callback, type CallbackRules, readCallback } from './callback.ts';
import { describeStatus } from './delivery_status.ts';
import { refusedParams } from './errors.ts';
import { exhausted, type FeedOptions, type FeedRequest } from './feed.ts';

export interface SubscriberOptions extends FeedOptions {
  handshakes: Handshakes;
  callbacks: CallbackRules;
}

/** How long a subscription lives without a refresh, in milliseconds. */
const lifetimeMs = { usual: 3_600_000, min: 300_000, max: 86_400_000 };
/** How long the secret before a refresh also signs. */
const overlapSeconds = 86_400;
/** Milliseconds that a statement of a creation may take. */
const createMsMax = 2_000;
/** A subscription can end between two statements. Then the next round creates it. */
const roundsMax = 5;

interface Wanted extends FeedRequest, Callback {
  key: string;
  owner: Extract<Owner, { kind: 'grant' }>;
  lifetimeMs: number;
}

type Result = Record<string, unknown>;

export class Subscriber {
  readonly #options: SubscriberOptions;

  constructor(options: SubscriberOptions) {
    this.#options = options;
  }

  /**
   * @param onFailure told why a callback did not echo; the agent learns only that it did not
   * @throws RpcError
   */
  async subscribe(
    request: FeedRequest,
    params: Readonly<Record<string, unknown>>,
    onFailure: (failure: { url: string; reason: string }) => void,
  ): Promise<Result> {
    const { callbacks, errors, db } = this.#options;
    const callback = readCallback(params.delivery, callbacks, errors);
    const { kind, grantId, accountId, clientId, arguments: canonical } = request;
    const identity = { principal: grantId, url: callback.url, name: kind.name, arguments: canonical };
    const owner = { kind: 'grant' as const, grantId, accountId, clientId };
    const lifetime = readLifetime(params.ttlMs);
    const wanted = { ...request, ...callback, key: agentKey(identity), owner, lifetimeMs: lifetime };
    let isChallenged = false;
    for (let round = 0; round < roundsMax; round += 1) {
      const existing = await findAgentSubscription(db, wanted.key, 'webhook');
      if (existing === undefined && !isChallenged) {
        await this.#challenge(wanted, onFailure);
        isChallenged = true;
        continue;
      }
      const result = await (existing === undefined ? this.#create(wanted) : this.#refresh(existing, wanted));
      if (result !== undefined) return result;
    }
    throw errors.create('ResourceExhausted', { limit: 'changes', retryAfterMs: 5_000 });
  }

  /** @throws RpcError CallbackEndpointError, ResourceExhausted */
  async #challenge(
    { grantId, clientId, accountId, url, secret, key }: Wanted,
    onFailure: (failure: { url: string; reason: string }) => void,
  ): Promise<void> {
    const { handshakes, errors } = this.#options;
    const target = {
      url,
      secret,
      signature: 'standard' as const,
      headerLines: '',
      auth: null,
      agentKey: key,
    };
    const owner = { key: `agent ${grantId}`, app: clientId, account: accountId };
    const failure = await waitElsewhere(() => handshakes.perform(owner, target));
    if (failure === null) return;
    if ('reason' in failure) {
      onFailure({ url, reason: failure.reason });
      throw errors.create('CallbackEndpointError', { reason: 'challenge_failed' });
    }
    const retryAfterMs = failure.retryAfterSeconds * 1_000;
    throw errors.create('ResourceExhausted', { limit: 'challenges', retryAfterMs });
  }

  /** @returns undefined if another request created it meanwhile @throws RpcError */
  async #create(wanted: Wanted): Promise<Result | undefined> {
    const { db, errors, turns, recover } = this.#options;
    const { place, maxAgeMs } = wanted;
    // Before the transaction, which locks the account.
    const point = place && (await turns.run(wanted, () => findResumePoint(db, place, maxAgeMs)));
    const made = await db
      .transaction()
      .execute((tx) => this.#insert(tx, wanted, point))
      .catch((error: unknown) => {
        throw error instanceof QuotaExceeded ? exhausted(errors, error) : error;
      });
    if (made === undefined) return undefined;
    if (made.isReplaying) recover();
    return made.result;
  }

  async #insert(
    tx: Transaction,
    wanted: Wanted,
    point: ResumePoint | null,
  ): Promise<{ result: Result; isReplaying: boolean } | undefined> {
    const { sealer, quotas, settings, newestVersion, errors } = this.#options;
    const { owner, kind, key, place, url, secret, filter } = wanted;
    // It holds the lock of the account.
    await sql`set local statement_timeout = ${sql.lit(createMsMax)}`.execute(tx);
    await actAsOwner(tx, owner);
    const created = await createAgentSubscription(
      tx,
      {
        ...{ owner, mode: 'webhook', key, name: kind.name, arguments: wanted.arguments, scope: kind.scope },
        ...{ filter, url, secret, format: 'agent', version: newestVersion, description: '' },
        ...{ retrySchedule: [...agentScheduleSeconds], lifetimeMs: wanted.lifetimeMs, isVerified: true },
      },
      sealer,
      quotas,
      settings,
    );
    if (created === undefined) throw errors.create('Forbidden', { reason: 'access_revoked' });
    const { subscription, isNew } = created;
    if (!isNew) return undefined;
    const { lane, createdAt, expiresAt } = subscription;
    const resumed = point === null ? undefined : await resumeInLane(tx, lane, point);
    const { isTruncated = false, isStarted = false } = resumed ?? {};
    // Until something is received, the agent has what it had.
    const start = place === null || isTruncated ? { lane, sequence: 0, at: createdAt } : place;
    return { result: this.#result(wanted, expiresAt, start, isTruncated), isReplaying: isStarted };
  }

  /** @returns undefined if it has ended meanwhile */
  async #refresh({ id, lane }: AgentSubscription, wanted: Wanted): Promise<Result | undefined> {
    const { db, sealer, newestVersion } = this.#options;
    const { owner, secret } = wanted;
    const refreshed = await db.transaction().execute(async (tx) => {
      await actAsOwner(tx, owner);
      // Before the row of the agent, as whatever ends it.
      await lockSubscription(tx, owner, id);
      const isReleased = await releaseAgent(tx, id, lane);
      const expiresAt = await renewAgentSubscription(tx, id, wanted.lifetimeMs);
      if (expiresAt === undefined) return undefined;
      if (newestVersion !== null) await setVersion(tx, id, newestVersion);
      // Also tells the nodes of the new expiry.
      await renewSecret(tx, owner, id, secret, overlapSeconds, sealer);
      if (isReleased) await wakeLane(tx, lane);
      return { expiresAt, place: await readAckedPlace(tx, lane) };
    });
    if (refreshed === undefined) return undefined;
    const status = await readAgentStatus(db, lane);
    const result = this.#result(wanted, refreshed.expiresAt, { lane, ...refreshed.place }, false);
    return { ...result, ...(status === undefined ? {} : { deliveryStatus: describeStatus(status) }) };
  }

  #result(
    { key, grantId, kind: { name }, arguments: canonical }: Wanted,
    expiresAt: Date,
    place: { lane: number; sequence: number; at: Date },
    isTruncated: boolean,
  ): Result {
    const refreshBefore = expiresAt.toISOString().replace('.000Z', 'Z');
    const cursor = this.#options.cursors.write({ grantId, name, arguments: canonical }, place);
    return { id: key, refreshBefore, cursor, truncated: isTruncated };
  }
}

/** Null asks for the longest. @returns milliseconds @throws RpcError InvalidParams */
function readLifetime(ttlMs: unknown): number {
  if (ttlMs === undefined) return lifetimeMs.usual;
  if (ttlMs === null) return lifetimeMs.max;
  if (typeof ttlMs !== 'number') throw refusedParams('ttlMs', 'invalid_type');
  return Math.min(Math.max(ttlMs, lifetimeMs.min), lifetimeMs.max);
}
