/**
 * Collects the steps that requests report and writes them in batches. Reporting costs a request no query. A step over a limit is not
 * recorded (step_limits.ts), so that a flood causes few writes and displaces no other trace.
 *
 *   reported → pending (in memory, up to one second) → written | lost, if the database is unavailable
 */

import { createHmac } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { asServer } from '../database/connection_user.ts';
import type { Database } from '../database/database.ts';
import { networksOf } from '../http/network.ts';
import { upTo } from '../shared/entries.ts';
import { pruneConnections, writeSteps } from './connection_store.ts';
import { type Observation, type PendingStep, stepKey } from './step.ts';
import { StepLimits } from './step_limits.ts';

/** Milliseconds between writes. */
const flushMs = 1_000;
/** Milliseconds between prunings. */
const pruneMs = 600_000;
/** Milliseconds for which discovery by an address is remembered, and the maximum number of addresses. */
const discoveryMs = 600_000;
const discoveriesMax = 5_000;
/** Maximum number of documents in the note about discovery. */
const documentsMax = 6;
/** Grants whose first call this node has reported. */
const reportedMax = 20_000;
/** Milliseconds for which a request over a rate limit stands for those after it, and the maximum number of addresses and kinds. */
const limitedMs = 60_000;
const limitedMax = 20_000;
/** Seconds after a token's issuance in which a call can be its first. */
const firstCallSeconds = 3_600;

/** Length of the digest of an address in characters. */
const sourceLength = 16;

export interface TracesOptions {
  db: Database;
  /** Key of the digests of addresses. */
  key: Buffer;
  /** @param lost number of steps that were not written */
  onError: (error: unknown, lost: number) => void;
}

export class ConnectionTraces {
  readonly #options: TracesOptions;
  readonly #limits = new StepLimits();
  readonly #discoveries = new LRUCache<string, { paths: Set<string>; at: number; requestId: string }>({
    ...upTo(discoveriesMax),
    ttl: discoveryMs,
  });
  readonly #reported = new LRUCache<string, true>(upTo(reportedMax));
  readonly #limited = new LRUCache<string, true>({ ...upTo(limitedMax), ttl: limitedMs });
  readonly #pruning: NodeJS.Timeout;
  #pending: PendingStep[] = [];
  #timer: NodeJS.Timeout | undefined;
  #flushing: Promise<void> = Promise.resolve();

  constructor(options: TracesOptions) {
    this.#options = options;
    this.#pruning = setInterval(() => this.#prune(), pruneMs);
    this.#pruning.unref();
  }

  /** Reports a step. Never throws, and is not recorded if the sender is over a limit. */
  add(observation: Observation): void {
    const source = this.#sourceOf(observation.address);
    if (!this.#limits.admits(observation, source)) return;
    const at = Date.now();
    const discovery = this.#discoveries.get(source);
    const begins = observation.name !== 'call' && observation.name !== 'sign-in' && observation.isKnown;
    if (discovery !== undefined && begins) {
      this.#discoveries.delete(source);
      const documents = [...discovery.paths].join(', ');
      this.#pending.push({
        ...observation,
        name: 'discovery',
        outcome: 'ok',
        error: undefined,
        explanation: `Read ${documents}.`,
        requestId: discovery.requestId,
        at: discovery.at,
        source,
      });
    }
    this.#pending.push({ ...observation, at, source });
    this.#timer ??= setTimeout(() => asServer(() => this.#flush()), flushMs);
  }

  /** Remembers that an address read a metadata document. It becomes a step once an app of that address continues. */
  discovered(address: string, path: string, requestId: string): void {
    const source = this.#sourceOf(address);
    const known = this.#discoveries.get(source) ?? { paths: new Set<string>(), at: Date.now(), requestId };
    if (known.paths.size < documentsMax) known.paths.add(path);
    this.#discoveries.set(source, known);
  }

  /** Whether a call with this token may be the first of its grant, or the first with this error. Later ones are not reported. */
  isFirstCall(grantId: string, issuedAt: number, error = ''): boolean {
    if (issuedAt + firstCallSeconds < Date.now() / 1_000) return false;
    const key = `${grantId} ${error}`;
    if (this.#reported.has(key)) return false;
    this.#reported.set(key, true);
    return true;
  }

  /**
   * Reports a request over a rate limit, the first in a minute of an address and kind. The others cost a lookup in memory.
   * @param kind the step and its registered app; all other apps are one, because anyone can make up their ids
   * @param describe makes the step; one without keys joins those of the same address and kind in this hour
   */
  addLimited(address: string, kind: string, describe: () => Observation): void {
    const key = `${networksOf(address).near} ${kind}`;
    if (this.#limited.has(key)) return;
    this.#limited.set(key, true);
    const step = describe();
    const hour = Math.floor(Date.now() / 3_600_000);
    const keys =
      step.keys.length > 0 ? step.keys : [stepKey('limited', `${this.#sourceOf(address)} ${kind} ${hour}`)];
    this.add({ ...step, keys: [...keys, stepKey('request', step.requestId)] });
  }

  /** Writes pending steps. */
  async stop(): Promise<void> {
    clearInterval(this.#pruning);
    clearTimeout(this.#timer);
    this.#flush();
    await this.#flushing;
  }

  #flush(): void {
    this.#timer = undefined;
    const steps = this.#pending;
    this.#pending = [];
    this.#limits.written();
    if (steps.length === 0) return;
    // One write at a time: the next one must see the connections that this one creates.
    this.#flushing = this.#flushing.then(() => this.#write(steps));
  }

  /** A step that the database refuses must not cost the steps of others. */
  async #write(steps: readonly PendingStep[]): Promise<void> {
    const { db, onError } = this.#options;
    try {
      await writeSteps(db, steps);
    } catch (error) {
      if (steps.length === 1 || !isDataError(error)) return onError(error, steps.length);
      for (const step of steps) await this.#write([step]);
    }
  }

  #prune(): void {
    pruneConnections(this.#options.db).catch((error: unknown) => this.#options.onError(error, 0));
  }

  #sourceOf(address: string): string {
    const { near } = networksOf(address);
    return createHmac('sha256', this.#options.key).update(near).digest('base64url').slice(0, sourceLength);
  }
}

/** Whether PostgreSQL refuses a value (SQLSTATE class 22). */
function isDataError(error: unknown): boolean {
  return String((error as { code?: unknown }).code).startsWith('22');
}
