/**
 * A UDP port from which one name server is asked. Questions share it while answers are missing, so that thousands of names whose servers
 * hang take few file descriptors. It gets answers of its server only, and each must repeat the question's id and its text (RFC 5452 section 9).
 *
 *   open (asks) → full (waits for answers) → closed when none is missing
 */

import { randomInt } from 'node:crypto';
import { createSocket, type Socket } from 'node:dgram';
import { isIPv6 } from 'node:net';
import { type Answer, idOf, type NameServer, type Question, readAnswer, writeQuery } from './message.ts';

/** Questions after which another port is used, which nobody knows yet. */
const questionsMax = 100;
const idMax = 0x1_0000;

/** A question that was sent. */
export interface SentQuestion {
  /** Sends it again. A server that still works at it knows by its id and port that it is the same. */
  repeat: () => void;
  /** Ends the wait for its answer. */
  end: () => void;
}

interface Waiting {
  question: Question;
  onAnswer: (answer: Answer) => void;
  onFailure: () => void;
}

export class UdpPort {
  readonly #socket: Socket;
  readonly #waiting = new Map<number, Waiting>();
  /** Resolves to whether it is connected. */
  readonly #connected: Promise<boolean>;
  #asked = 0;
  #isClosed = false;

  constructor({ address, port }: NameServer) {
    this.#socket = createSocket(isIPv6(address) ? 'udp6' : 'udp4');
    // Timers of those that wait keep the process alive.
    this.#socket.unref();
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.#connected = promise;
    this.#socket
      .on('message', (message) => this.#take(message))
      .on('connect', () => resolve(true))
      .on('error', () => {
        resolve(false);
        this.#fail();
      });
    this.#socket.connect(port, address);
  }

  /** Whether it may be asked more. */
  get isOpen(): boolean {
    return !this.#isClosed && this.#asked < questionsMax;
  }

  /**
   * Sends a question once.
   * @param onAnswer called at most once, and not before this method returns
   * @param onFailure called instead if the server cannot be reached
   */
  ask(question: Question, onAnswer: (answer: Answer) => void, onFailure: () => void): SentQuestion {
    this.#asked += 1;
    let id = randomInt(idMax);
    while (this.#waiting.has(id)) id = randomInt(idMax);
    const waiting = { question, onAnswer, onFailure };
    this.#waiting.set(id, waiting);
    const send = (isConnected: boolean) => {
      if (!isConnected || this.#isClosed || this.#waiting.get(id) !== waiting) return;
      this.#socket.send(writeQuery(id, question), (error) => {
        if (error === null) return;
        // If two questions are sent at once, only this tells the second that the server does not listen.
        if ((error as NodeJS.ErrnoException).code === 'ECONNREFUSED') this.#fail();
        else if (this.#waiting.get(id) === waiting) {
          this.#end(id);
          onFailure();
        }
      });
    };
    const repeat = () => void this.#connected.then(send);
    repeat();
    return {
      repeat,
      end: () => {
        if (this.#waiting.get(id) === waiting) this.#end(id);
      },
    };
  }

  #take(message: Buffer): void {
    const id = idOf(message);
    const waiting = id === undefined ? undefined : this.#waiting.get(id);
    const answer = waiting === undefined ? null : readAnswer(message, waiting.question);
    if (id === undefined || waiting === undefined || answer === null) return;
    this.#end(id);
    waiting.onAnswer(answer);
  }

  /** The system reports that the server does not listen, or that the socket cannot be used. */
  #fail(): void {
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    this.#close();
    for (const { onFailure } of waiting) onFailure();
  }

  #end(id: number): void {
    this.#waiting.delete(id);
    if (this.#waiting.size === 0) this.#close();
  }

  #close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#socket.close();
  }
}
