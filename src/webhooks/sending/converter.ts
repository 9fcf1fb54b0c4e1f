/**
 * Converts bodies to earlier versions. Users choose the content of their events, so one of them may make a function loop or take all
 * memory. What stops a thread is charged to the account of the event and to nobody else:
 *
 *   proven   the account's last conversion of the kind and version was fast: in the quick line, whose conversions take 100 ms at most
 *   stranger any other account: in the careful line, with a second for each conversion
 *   suspect  a conversion of the account took more than 100 ms of a processor or stopped a thread in the last hour: in the careful line, all suspects
 *            together for half of the time
 *
 * The thread itself measures the time: load on the node makes nobody a suspect.
 *
 * A proven account that stops the quick line becomes a suspect, and its conversion is tried again in the careful line. After three
 * stops there, the account's conversions of the kind and version fail at once: for a minute, then for two …
 */

import { LRUCache } from 'lru-cache';
import type { ConversionSource } from '../../events/conversion_source.ts';
import { upTo } from '../../shared/entries.ts';
import { accountOf, type Conversion, type ConversionKey, ConversionLine } from './conversion_line.ts';
import { type ConversionResult, noTime } from './conversion_thread.ts';
import type { ConversionTurn } from './conversion_turns.ts';

/** Milliseconds for one conversion in each line, and of a processor below which it is fast. */
const msMax = { quick: 100, careful: 1_000 };
const fastMs = 50;
/** Milliseconds for which the careful line keeps its thread. A thread takes some 60 MiB. */
const carefulIdleMs = 60_000;
/** Milliseconds for which an account is a suspect. */
const suspectMs = 3_600_000;
/** How often an account may stop the careful line with a kind and version, and for how long its conversions then fail at once. */
const stopsMax = 3;
const brokenMs = { first: 60_000, max: 3_600_000 };
/** Maximum number of entries: of proven accounts with their kinds and versions, of suspects, and of what they have stopped. */
const provenMax = 50_000;
const suspectsMax = 10_000;

/** A body could not be converted. The message is for the operator. */
export class ConversionError extends Error {
  override readonly name = 'ConversionError';
}

/** The turn of a request does not have the conversion: it has had enough, or the account is not proven. */
export class PostponedError extends ConversionError {}

interface Stops {
  count: number;
  at: number;
}

export class Converter {
  /** Null if no file declares the platform; then every conversion fails. */
  readonly #lines: { quick: ConversionLine; careful: ConversionLine } | null;
  readonly #proven = new LRUCache<string, true>(upTo(provenMax));
  /** By account. */
  readonly #suspects = new LRUCache<string, true>({ ...upTo(suspectsMax), ttl: suspectMs });
  readonly #stops = new LRUCache<string, Stops>({ ...upTo(suspectsMax), ttl: 2 * brokenMs.max });
  #isStopped = false;

  /** @param source null if no file declares the platform */
  constructor(source: ConversionSource | null) {
    const isSuspect = (account: string) => this.#suspects.has(account);
    this.#lines = source && {
      quick: new ConversionLine({
        source,
        msMax: msMax.quick,
        idleMsMax: null,
        isSuspect,
        mayConvert: (conversion) =>
          hasTurn(conversion) &&
          ((this.#isQuick(conversion) && !this.#isStopped) || this.#moveToCareful(conversion)),
        onResult: (conversion, result) => this.#endQuick(conversion, result),
      }),
      careful: new ConversionLine({
        source,
        msMax: msMax.careful,
        idleMsMax: carefulIdleMs,
        isSuspect,
        mayConvert: (conversion) => hasTurn(conversion) && this.#mayConvertCarefully(conversion),
        onResult: (conversion, result) => this.#endCareful(conversion, result),
      }),
    };
  }

  /** @param from version of the event's body @param to the earlier version that is wanted @throws ConversionError */
  convert(event: Conversion['event'], from: string, to: string, turn?: ConversionTurn): Promise<Buffer> {
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    const onEnd = (result: ConversionResult): void => {
      turn?.count(result);
      if ('body' in result) resolve(result.body);
      else reject(new ConversionError(result.error));
    };
    const onPostponed = () => reject(new PostponedError('it has no turn'));
    const conversion = { event, from, to, turn, onEnd, onPostponed };
    if (this.#lines === null) fail(conversion, 'the platform was not loaded from a file');
    else if (this.#isQuick(conversion)) this.#lines.quick.add(conversion);
    else this.#moveToCareful(conversion);
    return promise;
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    const lines = Object.values(this.#lines ?? {});
    await Promise.all(lines.map((line) => line.end('the server stops')));
  }

  /** Whether the next conversion of such an event is one of the quick line. */
  isQuick(event: Pick<Conversion['event'], 'kind' | 'accountId'>, from: string, to: string): boolean {
    return this.#isQuick({ event, from, to });
  }

  #isQuick(conversion: ConversionKey): boolean {
    return this.#proven.has(keyOf(conversion)) && !this.#suspects.has(accountOf(conversion));
  }

  #moveToCareful(conversion: Conversion): false {
    if (conversion.turn?.isQuick) conversion.onPostponed();
    else this.#lines?.careful.add(conversion);
    return false;
  }

  #endQuick(conversion: Conversion, result: ConversionResult): void {
    if (result.processorMs >= fastMs) this.#proven.delete(keyOf(conversion));
    if ('error' in result && result.wasStopped && !this.#isStopped) {
      this.#suspects.set(accountOf(conversion), true);
      this.#moveToCareful(conversion);
    } else conversion.onEnd(result);
  }

  #mayConvertCarefully(conversion: Conversion): boolean {
    const { count, at } = this.#stops.get(keyOf(conversion)) ?? { count: 0, at: 0 };
    const isBroken = count >= stopsMax && performance.now() < at + pauseAfter(count - stopsMax);
    if (this.#isStopped) fail(conversion, 'the server stops');
    else if (isBroken) fail(conversion, `it was too slow or used too much memory ${count} times`);
    else return true;
    return false;
  }

  #endCareful(conversion: Conversion, result: ConversionResult): void {
    const [key, account] = [keyOf(conversion), accountOf(conversion)];
    if (!this.#isStopped) {
      if (result.processorMs >= msMax.quick) this.#suspects.set(account, true);
      // Another conversion of the account may have stopped the quick line meanwhile.
      else if ('body' in result && result.processorMs < fastMs && !this.#suspects.has(account))
        this.#proven.set(key, true);
      if ('error' in result && result.wasStopped)
        this.#stops.set(key, { count: (this.#stops.get(key)?.count ?? 0) + 1, at: performance.now() });
    }
    conversion.onEnd(result);
  }
}

function fail(conversion: Conversion, error: string): void {
  conversion.onEnd({ error, wasStopped: false, ...noTime });
}

function hasTurn({ turn, onPostponed }: Conversion): boolean {
  if (turn?.isOver) onPostponed();
  return turn?.isOver !== true;
}

function keyOf(conversion: ConversionKey): string {
  const { event, from, to } = conversion;
  return `${event.kind} ${from} ${to} ${accountOf(conversion)}`;
}

function pauseAfter(stops: number): number {
  return Math.min(brokenMs.first * 2 ** stops, brokenMs.max);
}
