/** Conversions that wait for one thread. Next is the account whose share of its time is least used (fair_time.ts). */

import type { ConversionSource } from '../../events/conversion_source.ts';
import { FairTime } from '../../shared/fair_time.ts';
import { OwnerTurns, undivided } from '../../shared/owner_turns.ts';
import { type ConversionResult, ConversionThread } from './conversion_thread.ts';
import type { ConversionTurn } from './conversion_turns.ts';
import type { EventContent } from './delivery_request.ts';

export interface ConversionKey {
  event: Pick<EventContent, 'kind' | 'accountId'>;
  /** The version of the body, and the earlier one that is wanted. */
  from: string;
  to: string;
}

export interface Conversion extends ConversionKey {
  event: Pick<EventContent, 'kind' | 'accountId' | 'body'>;
  /** Of the request that needs it; undefined for a delivery. */
  turn: ConversionTurn | undefined;
  onEnd: (result: ConversionResult) => void;
  /** The turn does not have it. */
  onPostponed: () => void;
}

export interface ConversionLineOptions {
  source: ConversionSource;
  /** Milliseconds for one conversion. */
  msMax: number;
  /** Milliseconds without conversions after which the thread ends; null to keep it. */
  idleMsMax: number | null;
  /** Whether the account is one of those that get at most half of the time while others wait, all together. */
  isSuspect: (account: string) => boolean;
  /** Called when its turn has come. @returns whether it is converted here */
  mayConvert: (conversion: Conversion) => boolean;
  onResult: (conversion: Conversion, result: ConversionResult) => void;
}

export class ConversionLine {
  readonly #options: ConversionLineOptions;
  readonly #thread: ConversionThread;
  readonly #others = new OwnerTurns<Conversion>();
  readonly #suspects = new OwnerTurns<Conversion>();
  readonly #times = new FairTime();
  /** How many milliseconds more than the others the suspects have had while both waited. */
  #suspectLeadMs = 0;
  #isRunning = false;

  constructor(options: ConversionLineOptions) {
    this.#options = options;
    this.#thread = new ConversionThread(options.source, options.msMax, options.idleMsMax);
  }

  add(conversion: Conversion): void {
    const account = accountOf(conversion);
    (this.#options.isSuspect(account) ? this.#suspects : this.#others).add(account, conversion);
    if (!this.#isRunning) void this.#run();
  }

  /** Ends the conversion that runs. Those that wait have their turns. */
  async end(error: string): Promise<void> {
    await this.#thread.end(error);
  }

  async #run(): Promise<void> {
    const { mayConvert, onResult } = this.#options;
    this.#isRunning = true;
    for (let next = this.#take(); next !== undefined; next = this.#take()) {
      if (!mayConvert(next)) continue;
      const { kind, body } = next.event;
      // The text is a copy, so it is made only now.
      const request = { kind, from: next.from, to: next.to, body: body.toString() };
      const result = await this.#thread.convert(request);
      this.#times.add(undivided(accountOf(next)), result.ms);
      onResult(next, result);
      // Also if this conversion made its account a suspect.
      this.#suspectLeadMs += this.#options.isSuspect(accountOf(next)) ? result.ms : -result.ms;
    }
    this.#isRunning = false;
  }

  #take(): Conversion | undefined {
    const { isSuspect } = this.#options;
    let account = this.#nextOf(this.#others);
    // It may have become one while these waited.
    while (account !== undefined && isSuspect(account)) {
      for (const conversion of this.#others.takeAll(account)) this.#suspects.add(account, conversion);
      account = this.#nextOf(this.#others);
    }
    const isOneEmpty = this.#others.isEmpty || this.#suspects.isEmpty;
    if (isOneEmpty) this.#suspectLeadMs = 0;
    const isTurnOfSuspects = isOneEmpty ? this.#others.isEmpty : this.#suspectLeadMs < 0;
    if (isTurnOfSuspects) account = this.#nextOf(this.#suspects);
    return account === undefined
      ? undefined
      : (isTurnOfSuspects ? this.#suspects : this.#others).takeOf(account);
  }

  #nextOf(turns: OwnerTurns<Conversion>): string | undefined {
    return this.#times.nextOf([...turns.owners()].map(undivided))?.owner;
  }
}

/** Events without an account share their turns. */
export function accountOf({ event }: ConversionKey): string {
  return event.accountId ?? '';
}
