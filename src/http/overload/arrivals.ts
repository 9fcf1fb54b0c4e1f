/**
 * Turns of requests as they arrive. To read a request costs little, but Fastify spends some 100 µs on each, also on one for an unknown
 * path, and these are neither slow nor many at once, so that places do not limit them. One read of a connection brings two thousand requests
 * that nobody waited with (pipelining), and an address has thousands of connections. So a turn of the event loop handles requests for some
 * milliseconds, and what is left waits, by turns of the callers. Programs and proxies do not send requests before they have the responses to
 * those before, so a connection with many is closed.
 *
 *   arrives → handled at once, or, if this turn has no time left: waiting, by caller → its turn → handled
 *          ↘ too many without a response → the connection is closed
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { asServer } from '../../database/connection_user.ts';
import { OwnerTurns } from '../../shared/owner_turns.ts';

/** Milliseconds of a turn of the event loop for requests. */
const turnMs = 10;
/** The same while connections arrive: one request, since one is always handled. */
const turnMsOfAccepting = 0;
/** Requests of a connection that have no response. */
const unansweredMax = 16;

export class Arrivals {
  readonly #ownerOf: (request: IncomingMessage) => string;
  readonly #waiting = new OwnerTurns<() => void>();
  readonly #unanswered = new WeakMap<Socket, number>();
  /** What this turn of the event loop has spent. */
  #spentMs = 0;
  /** What this turn may spend. */
  #turnMs = turnMs;
  #hasAccepted = false;
  /** When the last handler returned. */
  #handledAt = 0;
  #isCounting = false;
  #isPlanned = false;

  /** @param ownerOf the caller of a request. Called only for those that wait */
  constructor(ownerOf: (request: IncomingMessage) => string) {
    this.#ownerOf = ownerOf;
  }

  /** To be called for each connection. */
  accept(): void {
    this.#hasAccepted = true;
    this.#turnMs = turnMsOfAccepting;
  }

  /** @param handle called once, at once or later, or not at all if the connection has ended by then */
  add(request: IncomingMessage, response: ServerResponse, handle: () => void): void {
    const { socket } = request;
    if (socket.destroyed) return;
    const unanswered = this.#unanswered.get(socket) ?? 0;
    if (unanswered >= unansweredMax) {
      close(socket);
      return;
    }
    this.#unanswered.set(socket, unanswered + 1);
    response.once('close', () => this.#unanswered.set(socket, (this.#unanswered.get(socket) ?? 1) - 1));
    if (this.#spentMs <= this.#turnMs && this.#waiting.isEmpty) this.#run(handle);
    else {
      this.#waiting.add(this.#ownerOf(request), () => {
        if (!socket.destroyed) this.#run(handle);
      });
    }
    this.#plan();
  }

  #run(handle: () => void): void {
    const startedAt = performance.now();
    try {
      handle();
    } finally {
      this.#handledAt = performance.now();
      this.#spentMs += this.#handledAt - startedAt;
      this.#countRest();
    }
  }

  /** Handlers continue in promises, and some need nothing else than the processor until they have responded. */
  #countRest(): void {
    if (this.#isCounting) return;
    this.#isCounting = true;
    afterPromises(() => {
      this.#isCounting = false;
      this.#spentMs += performance.now() - this.#handledAt;
    });
  }

  #plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    asServer(() => setImmediate(() => this.#take()));
  }

  #take(): void {
    this.#isPlanned = false;
    this.#spentMs = 0;
    this.#turnMs = this.#hasAccepted ? turnMsOfAccepting : turnMs;
    this.#hasAccepted = false;
    this.#takeNext();
  }

  #takeNext(): void {
    const next = this.#spentMs <= this.#turnMs ? this.#waiting.take() : undefined;
    try {
      next?.();
    } finally {
      if (next !== undefined) afterPromises(() => this.#takeNext());
      else if (this.#spentMs > 0) this.#plan();
    }
  }
}

/** Does the work in this turn of the event loop, after all promises that need no other turn. */
function afterPromises(work: () => void): void {
  asServer(() => queueMicrotask(() => process.nextTick(work)));
}

/**
 * Closes a connection. Node.js would make a request of each that had arrived, also after that: some 10 ms for a read. It stops after a request
 * that asks for another protocol, which is what its parser understands by 2. Its types do not have the parser; without it, nothing breaks.
 */
function close(socket: Socket & { parser?: { onIncoming?: () => number } | null }): void {
  if (socket.parser) socket.parser.onIncoming = () => 2;
  socket.destroy();
}
