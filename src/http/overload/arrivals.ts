/**
 * Turns of requests as they arrive (loop_turns.ts). To read a request costs little, but Fastify spends some 100 µs on each, also on one for an
 * unknown path, and these are neither slow nor many at once, so that places do not limit them. One read of a connection brings two thousand
 * requests that nobody waited with (pipelining), and an address has thousands of connections. Programs and proxies do not send requests before
 * they have the responses to those before, so a connection with many is closed, and those of some are handled one after the other: Node.js
 * would keep all responses, of which unread_responses.ts sees only the first.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { asServer } from '../../database/connection_user.ts';
import type { Sharer } from '../../shared/owner_turns.ts';
import { LoopTurns } from './loop_turns.ts';

/** Requests of a connection that have no response. */
const unansweredMax = 16;
/** Requests of all connections that wait for those before them. Each keeps its head, of up to 16 KiB. */
const waitingMax = 1_024;
/**
 * Milliseconds of a client's turn on connections that are shared. Not on others: whoever sent many small requests, each on a new connection, got so many
 * turns beside those with larger ones that everybody waited for the connections.
 */
const sharedMs = 0.5;

export class Arrivals {
  readonly #ownerOf: (request: IncomingMessage) => Sharer;
  readonly #isShared: (socket: Socket) => boolean;
  readonly #turns = new LoopTurns();
  readonly #sharedTurns = new LoopTurns(sharedMs);
  /** What begins each request of a connection that has no response. The first has begun. */
  readonly #unanswered = new WeakMap<Socket, (() => void)[]>();
  #waiting = 0;

  /**
   * @param ownerOf the caller of a request. Called only for those that wait
   * @param isShared whether requests of many clients arrive on a connection, as on those of a proxy
   */
  constructor(ownerOf: (request: IncomingMessage) => Sharer, isShared: (socket: Socket) => boolean) {
    this.#ownerOf = ownerOf;
    this.#isShared = isShared;
  }

  /** @param handle called once, at once or later, or not at all if the connection has ended by then */
  add(request: IncomingMessage, response: ServerResponse, handle: () => void): void {
    const { socket } = request;
    if (socket.destroyed) return;
    const unanswered = this.#unansweredOf(socket);
    const mustWait = unanswered.length > 0;
    if (unanswered.length >= unansweredMax || (mustWait && this.#waiting >= waitingMax)) {
      close(socket);
      return;
    }
    unanswered.push(() => this.#begin(request, handle));
    response.once('close', () => {
      unanswered.shift();
      const [next] = unanswered;
      if (next === undefined) return;
      this.#waiting -= 1;
      // Not for whom the request before worked.
      asServer(next);
    });
    if (mustWait) this.#waiting += 1;
    else this.#begin(request, handle);
  }

  #unansweredOf(socket: Socket): (() => void)[] {
    const known = this.#unanswered.get(socket);
    if (known !== undefined) return known;
    const unanswered: (() => void)[] = [];
    this.#unanswered.set(socket, unanswered);
    socket.once('close', () => {
      this.#waiting -= Math.max(0, unanswered.length - 1);
      unanswered.length = 0;
    });
    return unanswered;
  }

  /**
   * What a client sends itself is handled within the turn in which it is read, if there is time. A proxy's connections would each have a turn there, and
   * its clients none.
   */
  #begin(request: IncomingMessage, handle: () => void): void {
    const begin = () => {
      if (!request.socket.destroyed) handle();
    };
    if (this.#isShared(request.socket)) this.#sharedTurns.queue(this.#ownerOf(request), begin);
    else this.#turns.add(() => this.#ownerOf(request), begin);
  }
}

/**
 * Closes a connection. Node.js would make a request of each that had arrived, also after that: some 10 ms for a read. It stops after a request
 * that asks for another protocol, which is what its parser understands by 2. Its types do not have the parser; without it, nothing breaks.
 */
function close(socket: Socket & { parser?: { onIncoming?: () => number } | null }): void {
  if (socket.parser) socket.parser.onIncoming = () => 2;
  socket.destroy();
}
