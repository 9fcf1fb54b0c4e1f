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
  /** Whether the account's conversions get every second turn only, all such accounts together. */
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
  #wasSuspect = false;
  #isRunning = false;

  constructor(options: ConversionLineOptions) {
    this.#options = options;
    this.#thread = new ConversionThread(options.source, options.msMax);
  }

  add(conversion: Conversion): void {
    const account = accountOf(conversion);
    const turns = this.#options.isSuspect(account) ? this.#suspects : this.#others;
    const waiting = turns.get(account);
    if (waiting === undefined) turns.set(account, [conversion]);
    else waiting.push(conversion);
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
      onResult(next, await this.#thread.convert(request));
    }
    this.#isRunning = false;
  }

  #take(): Conversion | undefined {
    const [first, second] = this.#wasSuspect
      ? [this.#others, this.#suspects]
      : [this.#suspects, this.#others];
    const turns = first.size > 0 ? first : second;
    this.#wasSuspect = turns === this.#suspects;
    return takeTurn(turns);
  }
}

/** Events without an account share their turns. */
export function accountOf({ event }: Conversion): string {
  return event.accountId ?? '';
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
