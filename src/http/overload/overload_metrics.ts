/** What an operator sees of overload: metrics, and one log line in a while. */

import type { FastifyBaseLogger } from 'fastify';
import { Counter, Gauge, type Registry } from 'prom-client';
import type { Admission } from './admission.ts';
import type { BodyBudget } from './body_budget.ts';
import type { LoadMonitor } from './load_monitor.ts';
import { precedences } from './precedence.ts';

const reasons = ['full', 'share', 'deadline', 'bytes'];

/** @returns counts a refused request by class and reason */
export function createOverloadMetrics(
  registry: Registry,
  admission: Admission,
  bodies: BodyBudget,
): (precedence: string, reason: string) => void {
  const registers = [registry];
  const refused = new Counter({
    name: 'nuncio_requests_refused_total',
    help: 'Requests refused with 503 because the node is overloaded, by class and reason.',
    labelNames: ['class', 'reason'],
    registers,
  });
  // A counter that appears with its first value has no increase.
  for (const precedence of precedences) {
    for (const reason of reasons) refused.inc({ class: precedence, reason }, 0);
  }
  new Gauge({
    name: 'nuncio_requests',
    help: 'Requests that this node works for (in_progress) and that wait for that (waiting), by class.',
    labelNames: ['class', 'state'],
    registers,
    collect() {
      for (const precedence of precedences) {
        this.set({ class: precedence, state: 'in_progress' }, admission.inProgressOf(precedence));
        this.set({ class: precedence, state: 'waiting' }, admission.waitingOf(precedence));
      }
    },
  });
  new Gauge({
    name: 'nuncio_requests_limit',
    help: 'How many requests this node works for at once now. It falls while the event loop or the database is slow.',
    registers,
    collect() {
      this.set(admission.places);
    },
  });
  new Gauge({
    name: 'nuncio_request_body_bytes',
    help: 'Bytes reserved for bodies of requests of more than 16 KiB, or without a length, and for the values of their JSON.',
    registers,
    collect() {
      this.set(bodies.bytes);
    },
  });
  return (precedence, reason) => refused.inc({ class: precedence, reason });
}

/** At most one line in this time. */
const logMs = 10_000;

export class RefusalLog {
  readonly #logger: FastifyBaseLogger;
  readonly #admission: Admission;
  readonly #monitor: LoadMonitor;
  readonly #counts = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(logger: FastifyBaseLogger, admission: Admission, monitor: LoadMonitor) {
    this.#logger = logger;
    this.#admission = admission;
    this.#monitor = monitor;
  }

  /** The first refusal after a while is logged at once, the others together. */
  add(precedence: string, reason: string): void {
    const name = `${precedence} ${reason}`;
    this.#counts.set(name, (this.#counts.get(name) ?? 0) + 1);
    if (this.#timer === undefined) this.#write();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  #write(): void {
    const { loopDelayMs, databaseWaitMs } = this.#monitor;
    this.#logger.warn(
      {
        refused: Object.fromEntries(this.#counts),
        limit: this.#admission.places,
        in_progress: this.#admission.inProgress,
        loop_delay_ms: Math.round(loopDelayMs),
        database_wait_ms: Math.round(databaseWaitMs),
      },
      'requests refused: this node is overloaded',
    );
    this.#counts.clear();
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (this.#counts.size > 0) this.#write();
    }, logMs).unref();
  }
}
