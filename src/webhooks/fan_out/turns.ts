/**
 * The accounts whose events wait in the outbox, in the order of their turns. The leader keeps this list in memory and brings it
 * up to date before each pass: it reads the rows of the transactions that its last snapshot did not see (outbox_changes.ts). Of
 * each account it knows the row after which the waiting ones begin. So a pass never walks over rows that are dead but not vacuumed, however many
 * a long transaction elsewhere has left behind. A new leader first reads the whole outbox once, some blocks in each turn.
 *
 *   new rows → known, at the end of the queue → visited → (rows left) to the end of the queue | (none left) forgotten
 */

import type { Database } from '../../database/database.ts';
import type { FanOutPass } from './fan_out.ts';
import type { HeavyTurns } from './heavy_accounts.ts';
import {
  adoptRestored,
  countBlocks,
  findChanges,
  nothingSeen,
  readSnapshot,
  type Snapshot,
  scanBlocks,
  type WaitingAccount,
} from './outbox_changes.ts';
import type { PassLimits, PassRange, Visit } from './outbox_selection.ts';

/** Maximum accounts in memory. Further ones are read again when half of these have no events left. */
const accountsMax = 100_000;
/** Blocks that one part of a scan reads: 8 MiB. */
const scanBlocksMax = 1_024;

interface Place {
  /** The account's waiting rows have higher ids. */
  after: number;
  /** The UTC day of its oldest events; null if it is not known. */
  day: string | null;
}

/** A scan of the whole outbox. What it finds has turns only after its end, because the last block may have an account's first row. */
interface Scan {
  /** The next block, and the number of blocks at the beginning. Rows beyond it are changes. */
  next: number;
  readonly blocks: number;
  readonly found: Map<string, Place>;
  readonly foundMax: number;
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
  #scan: Scan | null = null;
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
    return this.#places.size === 0 && this.#scan === null && !this.#hasOmitted;
  }

  /** Whether accounts may have waiting events that are not known yet. */
  get isScanning(): boolean {
    return this.#scan !== null;
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
    await this.#beginScan(db);
  }

  async #beginScan(db: Database): Promise<void> {
    this.#hasOmitted = false;
    const foundMax = this.#accountsMax - this.#places.size;
    this.#scan = { next: 0, blocks: await countBlocks(db), found: new Map(), foundMax };
  }

  /** Reads what has changed, and a part of the scan if there is one. */
  async update(db: Database): Promise<void> {
    const { snapshot, accounts } = await findChanges(db, this.#snapshot);
    this.learn(snapshot, accounts);
    if (this.#hasOmitted && this.#scan === null && this.#places.size < this.#accountsMax / 2)
      await this.#beginScan(db);
    const scan = this.#scan;
    if (scan === null) return;
    const first = scan.next;
    for (const account of await scanBlocks(db, first, first + scanBlocksMax)) this.#add(account);
    scan.next = first + scanBlocksMax;
    if (scan.next < scan.blocks) return;
    this.#scan = null;
    for (const [account, place] of scan.found) this.#places.set(account, place);
  }

  /** @param accounts those of all rows that the snapshot sees and the last one did not */
  learn(snapshot: Snapshot, accounts: readonly WaitingAccount[]): void {
    this.#snapshot = snapshot;
    for (const account of accounts) this.#add(account);
  }

  #add({ account, after, day }: WaitingAccount): void {
    const place = this.#places.get(account) ?? this.#scan?.found.get(account);
    if (place === undefined) {
      // An account that was omitted may have earlier rows, which only a scan finds.
      const [places, max] =
        this.#scan === null ? [this.#places, this.#accountsMax] : [this.#scan.found, this.#scan.foundMax];
      if (places.size < max && !(this.#scan === null && this.#hasOmitted))
        places.set(account, { after, day });
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
    return this.#scan !== null || this.#hasOmitted;
  }
}
