/**
 * One question, to one name server after the other.
 *
 *   asking a server over UDP → answered
 *                           → truncated, without addresses → asking it over TCP → answered, or failed
 *                           → no answer for a while, or failed → asking the next server too; an earlier one may still answer
 *                           → all asked twice → waiting for an answer
 *                           → all failed → a pause → asking all of them once more → …
 */

import type { Answer, NameServer, Question } from './message.ts';
import type { askOverTcp } from './tcp_question.ts';
import type { SentQuestion, UdpPort } from './udp_port.ts';

/** Milliseconds after which the next server is asked, or the only one again. A name that takes longer is still found. */
const pauseMs = 1_500;
/** How often a server is asked. Each question may be one that the server works at until it gives up. */
const asksMax = 2;
/** Milliseconds after which all servers are asked once more if all have failed: some refuse questions while they have many. */
const againMs = 500;
/** Milliseconds after which no answer is waited for any more. */
export const lookupTimeoutMs = 5_000;

export interface LookupOptions {
  portTo: (server: NameServer) => UdpPort;
  askOverTcp: typeof askOverTcp;
  /** The server did not answer for a while what another one answered. */
  onSilent: (server: NameServer) => void;
}

export class Lookup {
  /** The addresses. */
  readonly promise: Promise<string[]>;
  readonly #question: Question;
  readonly #servers: readonly NameServer[];
  readonly #options: LookupOptions;
  readonly #resolve: (addresses: string[]) => void;
  readonly #reject: (error: Error) => void;
  /** Ends what was asked over TCP. */
  readonly #ends: (() => void)[] = [];
  readonly #failed = new Set<NameServer>();
  /** What was sent to servers that have not answered. */
  readonly #sent = new Map<NameServer, SentQuestion>();
  #hasAgain = false;
  /** Servers that were asked over TCP. */
  readonly #askedLong = new Set<NameServer>();
  /** Servers from which there was no answer when the next one was asked. */
  readonly #silent = new Set<NameServer>();
  #next = 0;
  readonly #timeout: NodeJS.Timeout;
  #pause: NodeJS.Timeout | undefined;
  #isOver = false;

  /** @param servers at least one */
  constructor(question: Question, servers: readonly NameServer[], options: LookupOptions) {
    this.#question = question;
    this.#servers = servers;
    this.#options = options;
    const { promise, resolve, reject } = Promise.withResolvers<string[]>();
    this.promise = promise;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#timeout = setTimeout(
      () => this.#end(new Error('no name server answered in time')),
      lookupTimeoutMs,
    );
    this.#askNext();
  }

  /** Asks the next of the servers that have not failed, of which there must be one. */
  #askNext(): void {
    clearTimeout(this.#pause);
    if (this.#next >= asksMax * this.#servers.length) return;
    let server: NameServer;
    do {
      server = this.#servers[this.#next % this.#servers.length] as NameServer;
      this.#next += 1;
    } while (this.#failed.has(server));
    this.#pause = setTimeout(() => {
      this.#silent.add(server);
      this.#askNext();
    }, pauseMs);
    this.#ask(server);
  }

  #ask(server: NameServer): void {
    const sent = this.#sent.get(server);
    if (sent !== undefined) {
      sent.repeat();
      return;
    }
    const onFailure = () => this.#fail(server);
    const onAnswer = (answer: Answer) => this.#take(answer, server);
    const onShort = (answer: Answer) => {
      if (!answer.isTruncated || answer.addresses.length > 0 || answer.isFailure) onAnswer(answer);
      else if (!this.#askedLong.has(server)) {
        this.#askedLong.add(server);
        this.#ends.push(this.#options.askOverTcp(server, this.#question, onAnswer, onFailure));
      }
    };
    this.#sent.set(server, this.#options.portTo(server).ask(this.#question, onShort, onFailure));
  }

  #take(answer: Answer, server: NameServer): void {
    if (answer.isFailure) {
      this.#fail(server);
      return;
    }
    this.#silent.delete(server);
    for (const each of this.#silent) this.#options.onSilent(each);
    this.#end(answer.addresses);
  }

  #fail(server: NameServer): void {
    if (this.#isOver || this.#failed.has(server)) return;
    this.#failed.add(server);
    if (this.#servers.some((each) => !this.#failed.has(each))) this.#askNext();
    else if (this.#hasAgain) this.#end(new Error('no name server found out'));
    else this.#askAgain();
  }

  #askAgain(): void {
    this.#hasAgain = true;
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => {
      this.#failed.clear();
      this.#sent.clear();
      this.#askedLong.clear();
      this.#next = 0;
      this.#askNext();
    }, againMs);
  }

  #end(result: string[] | Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#timeout);
    clearTimeout(this.#pause);
    for (const { end } of this.#sent.values()) end();
    for (const end of this.#ends) end();
    if (result instanceof Error) this.#reject(result);
    else this.#resolve(result);
  }
}
