/**
 * The accounts whose events wait in the outbox, in the order of their turns. The leader keeps this list in memory and brings it
 * up to date before each pass: it reads the rows of the transactions that its last snapshot did not see (outbox_changes.ts). Of
 * each account it knows the row after which the waiting ones begin. So a pass never walks over rows that are dead but not vacuumed, however many
 * a long transaction elsewhere has left behind. A new leader reads the whole outbox once, a part before each pass.
 *
 *   new rows → known, at the end of the queue → visited → (rows left) to the end of the queue | (none left) forgotten
 */

import type { Database } from '../../database/database.ts';
import type { FanOutPass } from './fan_out.ts';
import type { HeavyTurns } from './heavy_accounts.ts';
import {
  adoptRestored,
  findChanges,
  nothingSeen,
  readSnapshot,
  type Snapshot,
  scanOutbox,
  type WaitingAccount,
} from './outbox_changes.ts';
import type { PassLimits, PassRange, Visit } from './outbox_selection.ts';

/** Maximum accounts in memory. Further ones are read again when half of these have no events left. */
const accountsMax = 100_000;
/** Accounts that one part of a scan reads. */
const scanMax = 1_000;

interface Place {
  /** The account's waiting rows have higher ids. */
  after: number;
  /** The UTC day of its oldest events; null if it is not known. */
  day: string | null;
}

/** Which of the accounts a pass visits. */
export interface Choice {
  limits: PassLimits;
  heavy: HeavyTurns;
  /** Whether a pass of its own handles the account. */
  isApart: (account: string) => boolean;
}

export class Turns {
  readonly #places = new Map<string, Place>();
  #snapshot: Snapshot = nothingSeen;
  /** A scan of the whole outbox continues after this account; null if there is none. */
  #scanAfter: string | null = null;
  /** Whether accounts were left out because there were too many. */
  #hasOmitted = false;
  #day: string;
  readonly #accountsMax: number;

  /** @param day the UTC day of most events at first */
  constructor(day: string, max: number = accountsMax) {
    this.#day = day;
    this.#accountsMax = max;
  }

  /** Whether all accounts with waiting events are in memory, and there are none. */
  get isEmpty(): boolean {
    return this.#places.size === 0 && this.#scanAfter === null && !this.#hasOmitted;
  }

  /** Whether an account is known to have waiting events. */
  has(account: string): boolean {
    return this.#places.has(account);
  }

  /** What the last reading of the outbox saw. */
  get snapshot(): Snapshot {
    return this.#snapshot;
  }

  /** The accounts that have waited longest for their turn, for the age of the backlog. */
  first(count: number): Visit[] {
    const visits: Visit[] = [];
    for (const [account, { after }] of this.#places) {
      if (visits.length === count) break;
      visits.push({ account, after });
    }
    return visits;
  }

  /** Forgets everything: another node may have led meanwhile. */
  async restart(db: Database): Promise<void> {
    this.#places.clear();
    await adoptRestored(db);
    // Rows that commit during the scan are changes since this snapshot.
    this.#snapshot = await readSnapshot(db);
    this.#scanAfter = '';
    this.#hasOmitted = false;
  }

  /** Reads what has changed, and a part of the scan if there is one. */
  async update(db: Database): Promise<void> {
    const { snapshot, accounts } = await findChanges(db, this.#snapshot);
    this.learn(snapshot, accounts);
    const isHalfFull = this.#places.size >= this.#accountsMax / 2;
    if (this.#hasOmitted && this.#scanAfter === null && !isHalfFull) {
      this.#hasOmitted = false;
      this.#scanAfter = '';
    }
    if (this.#scanAfter === null || isHalfFull) return;
    const found = await scanOutbox(db, this.#scanAfter, scanMax);
    for (const account of found) this.#add(account);
    this.#scanAfter = found.length < scanMax ? null : (found.at(-1)?.account ?? null);
  }

  /** @param accounts those of all rows that the snapshot sees and the last one did not */
  learn(snapshot: Snapshot, accounts: readonly WaitingAccount[]): void {
    this.#snapshot = snapshot;
    // An account may have older rows that the scan has not reached.
    const isScanning = this.#scanAfter !== null || this.#hasOmitted;
    for (const account of accounts) {
      const isUnknown = isScanning && !this.#places.has(account.account);
      this.#add(isUnknown ? { ...account, after: 0, day: null } : account);
    }
  }

  #add({ account, after, day }: WaitingAccount): void {
    const place = this.#places.get(account);
    if (place === undefined) {
      if (this.#places.size < this.#accountsMax) this.#places.set(account, { after, day });
      else this.#hasOmitted = true;
      return;
    }
    if (after >= place.after) return;
    // A transaction that began earlier has committed later.
    place.after = after;
    place.day = day;
  }

  /** What the pass may visit when the list was empty: the accounts of new rows, which the pass finds itself. */
  rangeOfNew(limits: PassLimits, heavy: HeavyTurns): PassRange {
    return { day: this.#day, visits: null, snapshot: this.#snapshot, ...heavy, limits };
  }

  /** @returns undefined if no account can be visited now */
  range({ limits, heavy, isApart }: Choice): PassRange | undefined {
    const visits = this.#visits(limits.accounts, isApart);
    if (visits.length === 0) return undefined;
    return { day: this.#day, visits, snapshot: this.#snapshot, ...heavy, limits };
  }

  /** What a pass of a single account, or a slice of one of its events, starts from. @returns undefined if nothing waits */
  place(account: string): Visit | undefined {
    const place = this.#places.get(account);
    return place && { account, after: place.after };
  }

  /** Accounts in the order of their turns, with events of the same day as the first one of them. */
  #visits(max: number, isApart: (account: string) => boolean): Visit[] {
    const visits: Visit[] = [];
    let day: string | null = null;
    for (const [account, place] of this.#places) {
      if (isApart(account)) continue;
      if (place.day !== null) {
        day ??= place.day;
        if (place.day !== day) continue;
      }
      visits.push({ account, after: place.after });
      if (visits.length === max) break;
    }
    this.#day = day ?? this.#day;
    return visits;
  }

  /** Moves the visited accounts to the end of the queue, and forgets those without further events. */
  advance({ visited, day }: Pick<FanOutPass, 'visited' | 'day'>): void {
    for (const { account, through, hasMore, otherDay } of visited) {
      const place = this.#places.get(account);
      if (!hasMore) {
        this.#places.delete(account);
        continue;
      }
      if (otherDay !== null && place !== undefined) {
        // Keeps its turn, which comes with a pass of that day.
        place.day = otherDay;
        continue;
      }
      this.#places.delete(account);
      const after = Math.max(through ?? 0, place?.after ?? 0);
      this.#places.set(account, { after, day: otherDay ?? (through === null ? day : null) });
    }
  }

  /** Moves an account to the end of the queue. */
  postpone(account: string): void {
    const place = this.#places.get(account);
    if (place === undefined) return;
    this.#places.delete(account);
    this.#places.set(account, place);
  }

  /** Whether any account can be visited, apart from those that `isApart` excludes. */
  hasOthers(isApart: (account: string) => boolean): boolean {
    for (const account of this.#places.keys()) if (!isApart(account)) return true;
    return this.#scanAfter !== null || this.#hasOmitted;
  }
}
