/**
 * Asks the system's name servers for the addresses of a name. Node's own resolver reads the whole of an answer, in quadratic time and in the
 * thread that asks: 4,000 addresses take some 40 ms, and whoever owns a name chooses them. This one reads as many as are used.
 */

import { Lookup } from './lookup.ts';
import type { Family, NameServer } from './message.ts';
import { writeQuestion } from './message.ts';
import { createSystemServers } from './servers.ts';
import { askOverTcp } from './tcp_question.ts';
import { UdpPort } from './udp_port.ts';

/** Milliseconds for which a server is asked last, after another one has answered what it had not. */
const lastMs = 30_000;
/** Maximum questions over TCP at once. Name servers take few, some of them ten. Names that need it have more than 25 addresses. */
const tcpMax = 20;

export class DnsClient {
  readonly #servers: () => readonly NameServer[];
  readonly #ports = new Map<string, UdpPort>();
  /** Servers that are asked last, and until when. */
  readonly #last = new Map<string, number>();
  #tcpCount = 0;

  /** @param servers in their order. Default: the system's */
  constructor(servers = createSystemServers()) {
    this.#servers = servers;
  }

  /**
   * Looks up the addresses of one family.
   * @param name a host name, without search domains
   * @returns at most 16; none if there are none
   * @throws Error if the name is not valid, or if no server gives an answer within `lookupTimeoutMs`
   */
  async lookUp(name: string, family: Family): Promise<string[]> {
    const question = writeQuestion(name, family);
    const now = performance.now();
    const isLast = (server: NameServer) => (this.#last.get(keyOf(server)) ?? 0) > now;
    const servers = [...this.#servers()].sort((a, b) => Number(isLast(a)) - Number(isLast(b)));
    if (servers.length === 0) throw new Error('there is no name server');
    return new Lookup(question, servers, {
      portTo: (server) => this.#portTo(server),
      askOverTcp: this.#askOverTcp,
      onSilent: (server) => this.#last.set(keyOf(server), performance.now() + lastMs),
    }).promise;
  }

  #portTo(server: NameServer): UdpPort {
    const key = keyOf(server);
    let port = this.#ports.get(key);
    if (port === undefined || !port.isOpen) {
      port = new UdpPort(server);
      this.#ports.set(key, port);
    }
    return port;
  }

  readonly #askOverTcp: typeof askOverTcp = (server, question, onAnswer, onFailure) => {
    if (this.#tcpCount >= tcpMax) {
      onFailure();
      return () => {};
    }
    this.#tcpCount += 1;
    const end = askOverTcp(server, question, onAnswer, onFailure);
    let isOver = false;
    return () => {
      if (!isOver) this.#tcpCount -= 1;
      isOver = true;
      end();
    };
  };
}

const keyOf = ({ address, port }: NameServer) => `${address} ${port}`;
