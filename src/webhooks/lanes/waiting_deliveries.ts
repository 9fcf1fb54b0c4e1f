/**
 * The deliveries in a lane's memory that wait to start: retries that are due, and those that were never attempted. Both take turns, so that no
 * number of retries keeps what is new waiting. In an ordered lane, retries come first. The memory of their bodies counts for the app
 * (delivery_memory.ts).
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
  readonly #isOrdered: () => boolean;
  /** Whether the last one was a retry. */
  #wasDue = false;

  constructor(app: TenantApp, isOrdered: () => boolean) {
    this.#app = app;
    this.#isOrdered = isOrdered;
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
    return this.#isDueNext ? this.#due[0] : this.#fresh[this.#freshFrom];
  }

  get #isDueNext(): boolean {
    if (this.#due.length === 0) return false;
    return this.#isOrdered() || !this.#wasDue || this.freshCount === 0;
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
    this.#wasDue = this.#isDueNext;
    if (this.#wasDue) {
      this.#due.shift();
      return next;
    }
    this.#freshFrom += 1;
    if (this.#freshFrom > startedMax) {
      this.#fresh.splice(0, this.#freshFrom);
      this.#freshFrom = 0;
    }
    return next;
  }

  /** @returns the account's deliveries, which were dropped */
  dropAccount(account: string): LoadedDelivery[] {
    const isOfAccount = ({ event }: LoadedDelivery) => event.accountId === account;
    const fresh = this.#fresh.slice(this.#freshFrom);
    const dropped = [...fresh, ...this.#due].filter(isOfAccount);
    if (dropped.length === 0) return dropped;
    this.#fresh.splice(0, this.#fresh.length, ...fresh.filter((each) => !isOfAccount(each)));
    this.#freshFrom = 0;
    const due = this.#due.splice(0);
    this.#due.push(...due.filter((each) => !isOfAccount(each)));
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
