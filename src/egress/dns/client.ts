/**
 * Asks the system's name servers for the addresses of a name. Node's own resolver reads the whole of an answer, in quadratic time and in the
 * thread that asks: 4,000 addresses take some 40 ms, and whoever owns a name chooses them. This one reads as many as are used.
 *
 *   asking a server over UDP → answered
 *                           → truncated, without addresses → asking it over TCP → answered, or failed
 *                           → no answer for a while, or failed → asking the next server too; an earlier one may still answer
 */

import dns from 'node:dns';
import {
  type Answer,
  type Family,
  type NameServer,
  type Question,
  readServer,
  writeQuestion,
} from './message.ts';
import { askOverTcp } from './tcp_question.ts';
import { UdpPort } from './udp_port.ts';

/** Milliseconds after which the next server is asked, or the only one again. A name that takes longer is still found. */
const pauseMs = 1_500;
/** Milliseconds after which no answer is waited for any more. */
export const lookupTimeoutMs = 5_000;

export class DnsClient {
  readonly #servers: () => readonly string[];
  readonly #ports = new Map<string, UdpPort>();

  /** @param servers in the form of `getServers` of `node:dns`. Default: the system's */
  constructor(servers = (): readonly string[] => dns.getServers()) {
    this.#servers = servers;
  }

  /**
   * Looks up the addresses of one family.
   * @param name a host name, without search domains
   * @returns at most 16; none if there are none
   * @throws Error if the name is not valid, or if no server gives an answer within `lookupTimeoutMs`
   */
  async lookUp(name: string, family: Family): Promise<string[]> {
    const servers = this.#servers().map(readServer);
    if (servers.length === 0) throw new Error('there is no name server');
    return new Lookup(writeQuestion(name, family), servers, (server) => this.#portTo(server)).promise;
  }

  #portTo(server: NameServer): UdpPort {
    const key = `${server.address} ${server.port}`;
    let port = this.#ports.get(key);
    if (port === undefined || !port.isOpen) {
      port = new UdpPort(server);
      this.#ports.set(key, port);
    }
    return port;
  }
}

/** One question, to one server after the other. */
class Lookup {
  readonly promise: Promise<string[]>;
  readonly #question: Question;
  readonly #servers: readonly NameServer[];
  readonly #portTo: (server: NameServer) => UdpPort;
  readonly #resolve: (addresses: string[]) => void;
  readonly #reject: (error: Error) => void;
  /** Ends what was asked. */
  readonly #ends: (() => void)[] = [];
  readonly #failed = new Set<NameServer>();
  #asked = 0;
  readonly #timeout: NodeJS.Timeout;
  #pause: NodeJS.Timeout | undefined;
  #isOver = false;

  constructor(question: Question, servers: readonly NameServer[], portTo: (server: NameServer) => UdpPort) {
    this.#question = question;
    this.#servers = servers;
    this.#portTo = portTo;
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

  #askNext(): void {
    clearTimeout(this.#pause);
    const left = this.#servers.filter((server) => !this.#failed.has(server));
    this.#pause = setTimeout(() => this.#askNext(), pauseMs);
    const server = left[this.#asked % left.length] as NameServer;
    this.#asked += 1;
    this.#askServer(server);
  }

  #askServer(server: NameServer): void {
    const onFailure = () => this.#fail(server);
    const onAnswer = (answer: Answer) => this.#take(answer, server);
    const onShort = (answer: Answer) => {
      if (!answer.isTruncated || answer.addresses.length > 0 || answer.isFailure) onAnswer(answer);
      else this.#ends.push(askOverTcp(server, this.#question, onAnswer, onFailure));
    };
    this.#ends.push(this.#portTo(server).ask(this.#question, onShort, onFailure));
  }

  #take(answer: Answer, server: NameServer): void {
    if (answer.isFailure) this.#fail(server);
    else this.#end(answer.addresses);
  }

  #fail(server: NameServer): void {
    if (this.#isOver || this.#failed.has(server)) return;
    this.#failed.add(server);
    if (this.#failed.size === this.#servers.length) this.#end(new Error('no name server found out'));
    else this.#askNext();
  }

  #end(result: string[] | Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#timeout);
    clearTimeout(this.#pause);
    for (const end of this.#ends) end();
    if (result instanceof Error) this.#reject(result);
    else this.#resolve(result);
  }
}
