/** Conversions that wait for one thread. Accounts take turns. */

import type { ConversionSource } from '../../events/conversion_source.ts';
import { type ConversionResult, ConversionThread } from './conversion_thread.ts';
import type { EventContent } from './delivery_request.ts';

export interface Conversion {
  event: Pick<EventContent, 'kind' | 'accountId' | 'body'>;
  /** The version of the body, and the earlier one that is wanted. */
  from: string;
  to: string;
  onEnd: (result: ConversionResult) => void;
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

/** By account, in the order of their turns. */
type Turns = Map<string, Conversion[]>;

export class ConversionLine {
  readonly #options: ConversionLineOptions;
  readonly #thread: ConversionThread;
  readonly #others: Turns = new Map();
  readonly #suspects: Turns = new Map();
  /** How many milliseconds more than the others the suspects have had while both waited. */
  #suspectLeadMs = 0;
  #isRunning = false;

  constructor(options: ConversionLineOptions) {
    this.#options = options;
    this.#thread = new ConversionThread(options.source, options.msMax, options.idleMsMax);
  }

  add(conversion: Conversion): void {
    const account = accountOf(conversion);
    append(this.#options.isSuspect(account) ? this.#suspects : this.#others, account, [conversion]);
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
      onResult(next, result);
      // Also if this conversion made its account a suspect.
      this.#suspectLeadMs += this.#options.isSuspect(accountOf(next)) ? result.ms : -result.ms;
    }
    this.#isRunning = false;
  }

  #take(): Conversion | undefined {
    for (const [account, waiting] of this.#others) {
      if (!this.#options.isSuspect(account)) break;
      // It has become one while these waited.
      this.#others.delete(account);
      append(this.#suspects, account, waiting);
    }
    if (this.#others.size === 0 || this.#suspects.size === 0) this.#suspectLeadMs = 0;
    const isTurnOfSuspects = this.#others.size === 0 || (this.#suspects.size > 0 && this.#suspectLeadMs < 0);
    return takeTurn(isTurnOfSuspects ? this.#suspects : this.#others);
  }
}

/** Events without an account share their turns. */
export function accountOf({ event }: Conversion): string {
  return event.accountId ?? '';
}

function append(turns: Turns, account: string, conversions: Conversion[]): void {
  const waiting = turns.get(account);
  if (waiting === undefined) turns.set(account, conversions);
  else waiting.push(...conversions);
}

/** The account goes to the end of the turns. */
function takeTurn(turns: Turns): Conversion | undefined {
  const [turn] = turns;
  if (turn === undefined) return undefined;
  const [account, waiting] = turn;
  const conversion = waiting.shift();
  turns.delete(account);
  if (waiting.length > 0) turns.set(account, waiting);
  return conversion;
}
