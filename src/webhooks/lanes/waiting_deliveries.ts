/**
 * The deliveries in a lane's memory that wait to start: retries that are due, and then those that were never attempted. The memory of their
 * bodies counts for the app (delivery_memory.ts).
 */

import type { TenantApp } from './delivery_memory.ts';
import type { LoadedDelivery } from './due_deliveries.ts';

/** Started deliveries at the beginning of the array before it is shortened. */
const startedMax = 256;

export class WaitingDeliveries {
  readonly #app: TenantApp;
  readonly #fresh: LoadedDelivery[] = [];
  #freshFrom = 0;
  readonly #due: LoadedDelivery[] = [];

  constructor(app: TenantApp) {
    this.#app = app;
  }

  /** Deliveries that were never attempted. */
  get freshCount(): number {
    return this.#fresh.length - this.#freshFrom;
  }

  /** Retries. */
  get dueCount(): number {
    return this.#due.length;
  }

  get count(): number {
    return this.freshCount + this.dueCount;
  }

  /** The one that `shift` would return; undefined if there is none. */
  get next(): LoadedDelivery | undefined {
    return this.#due[0] ?? this.#fresh[this.#freshFrom];
  }

  /** Adds a delivery that was never attempted. Calls are in order of the sequence. */
  addFresh(delivery: LoadedDelivery): void {
    this.#keep(delivery);
    this.#fresh.push(delivery);
  }

  addDue(delivery: LoadedDelivery): void {
    this.#keep(delivery);
    this.#due.push(delivery);
  }

  #keep(delivery: LoadedDelivery): void {
    delivery.event = this.#app.add(delivery.position, delivery.event);
  }

  /** Removes the next one, whose memory still counts until it ends. Call it only if there is one. */
  shift(): LoadedDelivery {
    const next = this.next as LoadedDelivery;
    if (this.#due.shift() !== undefined) return next;
    this.#freshFrom += 1;
    if (this.#freshFrom > startedMax) {
      this.#fresh.splice(0, this.#freshFrom);
      this.#freshFrom = 0;
    }
    return next;
  }

  some(isWanted: (delivery: LoadedDelivery) => boolean): boolean {
    return (
      this.#due.some(isWanted) || this.#fresh.some((each, at) => at >= this.#freshFrom && isWanted(each))
    );
  }

  /** Drops some. @returns these */
  dropSome(isDropped: (delivery: LoadedDelivery) => boolean): LoadedDelivery[] {
    const fresh = this.#fresh.slice(this.#freshFrom);
    const dropped = [...fresh, ...this.#due].filter(isDropped);
    if (dropped.length === 0) return dropped;
    this.#fresh.splice(0, this.#fresh.length, ...fresh.filter((each) => !isDropped(each)));
    this.#freshFrom = 0;
    const due = this.#due.splice(0);
    this.#due.push(...due.filter((each) => !isDropped(each)));
    for (const { position } of dropped) this.#app.drop(position);
    return dropped;
  }

  /** Drops all. @returns the first that was never attempted, and the retries */
  drop(): { first: LoadedDelivery | undefined; due: LoadedDelivery[] } {
    const fresh = this.#fresh.slice(this.#freshFrom);
    const due = this.#due.splice(0);
    for (const { position } of [...fresh, ...due]) this.#app.drop(position);
    this.#fresh.length = 0;
    this.#freshFrom = 0;
    return { first: fresh[0], due };
  }
}
