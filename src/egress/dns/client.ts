/**
 * Asks the system's name servers for the addresses of a name. Node's own resolver reads the whole of an answer, in quadratic time and in the
 * thread that asks: 4,000 addresses take some 40 ms, and whoever owns a name chooses them. This one reads as many as are used.
 *
 *   server: asked in its order → silent while another answers, and also when asked for the root → asked last for a while
 */

import { LimitedWork } from '../../shared/limited_work.ts';
import { Lookup } from './lookup.ts';
import { type Family, type NameServer, rootQuestion, writeQuestion } from './message.ts';
import { createSystemServers } from './servers.ts';
import { askOverTcp } from './tcp_question.ts';
import { UdpPort } from './udp_port.ts';

/** Milliseconds for which a server is asked last. */
const lastMs = 30_000;
/** Milliseconds in which a server that works answers the question for the root. */
const probeMs = 1_500;
/** Maximum questions over TCP at once, of which tenants have shares. Name servers take few, some of them ten. Names that need it have more than 25 addresses. */
const tcpMax = 20;

export class DnsClient {
  readonly #servers: () => readonly NameServer[];
  readonly #ports = new Map<string, UdpPort>();
  /** Servers that are asked last, and until when. */
  readonly #last = new Map<string, number>();
  /** Servers that are asked for the root. */
  readonly #probed = new Set<string>();
  readonly #tcp = new LimitedWork(tcpMax, true);

  /** @param servers in their order. Default: the system's */
  constructor(servers = createSystemServers()) {
    this.#servers = servers;
  }

  /**
   * Looks up the addresses of one family.
   * @param name a host name, without search domains
   * @param tenant who wants it
   * @returns at most 16; none if there are none
   * @throws Error if the name is not valid, or if no server gives an answer within `lookupTimeoutMs`
   */
  async lookUp(name: string, family: Family, tenant = ''): Promise<string[]> {
    const question = writeQuestion(name, family);
    const now = performance.now();
    const isLast = (server: NameServer) => (this.#last.get(keyOf(server)) ?? 0) > now;
    const servers = [...this.#servers()].sort((a, b) => Number(isLast(a)) - Number(isLast(b)));
    if (servers.length === 0) throw new Error('there is no name server');
    return new Lookup(question, servers, {
      portTo: (server) => this.#portTo(server),
      askOverTcp: (...asked) => this.#askOverTcp(tenant, ...asked),
      onSilent: (server) => this.#probe(server),
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

  /** Finds out whether a server is silent, or only the servers of a name, which belong to somebody. */
  #probe(server: NameServer): void {
    const key = keyOf(server);
    if (this.#probed.has(key)) return;
    this.#probed.add(key);
    let isSilent = true;
    const { end } = this.#portTo(server).ask(
      rootQuestion,
      () => {
        isSilent = false;
      },
      () => {},
    );
    setTimeout(() => {
      end();
      this.#probed.delete(key);
      if (isSilent) this.#last.set(key, performance.now() + lastMs);
    }, probeMs).unref();
  }

  /** Asks when it is the tenant's turn. @returns ends the question, or its wait */
  #askOverTcp(tenant: string, ...asked: Parameters<typeof askOverTcp>): () => void {
    const [server, question, onAnswer, onFailure] = asked;
    const over = new AbortController();
    const ask = () =>
      new Promise<void>((resolve) => {
        const end = askOverTcp(
          server,
          question,
          (answer) => {
            resolve();
            onAnswer(answer);
          },
          () => {
            resolve();
            onFailure();
          },
        );
        over.signal.addEventListener('abort', () => {
          end();
          resolve();
        });
      });
    // It only fails if the wait ends.
    this.#tcp.run(tenant, ask, undefined, over.signal).catch(() => {});
    return () => over.abort();
  }
}

const keyOf = ({ address, port }: NameServer) => `${address} ${port}`;
