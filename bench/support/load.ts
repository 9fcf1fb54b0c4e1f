/** A cheap load generator: it repeats one request over persistent connections, and reads only the length of each response. */

import { connect } from 'node:net';

export interface LoadOptions {
  port: number;
  /** Number of connections, each with one request in flight. */
  connections: number;
  milliseconds: number;
  /** The whole request, head and body. */
  request: string;
  /** The expected status of every response. */
  status: number;
}

/** @returns responses a second */
export async function load(options: LoadOptions): Promise<number> {
  const { milliseconds } = options;
  const counters = await openConnections(options);
  const startedAt = performance.now();
  for (const counter of counters) counter.start();
  await new Promise((resolve) => setTimeout(resolve, milliseconds));
  const seconds = (performance.now() - startedAt) / 1_000;
  let answers = 0;
  for (const counter of counters) answers += counter.stop();
  return answers / seconds;
}

/** Sends for some milliseconds, then waits for the last response of each connection. @returns the number of all responses */
export async function loadToTheEnd(options: LoadOptions): Promise<number> {
  const counters = await openConnections(options);
  for (const counter of counters) counter.start();
  await new Promise((resolve) => setTimeout(resolve, options.milliseconds));
  const counts = await Promise.all(counters.map((counter) => counter.drain()));
  return counts.reduce((sum, count) => sum + count, 0);
}

/** Connections that stay open between turns of load. */
export interface Load {
  /** Sends for some milliseconds, then waits for the last response of each connection. @returns the number of responses */
  run(milliseconds: number): Promise<number>;
  close(): void;
}

export async function openLoad(options: Omit<LoadOptions, 'milliseconds'>): Promise<Load> {
  const counters = await openConnections(options);
  return {
    async run(milliseconds) {
      const counts = counters.map((counter) => counter.turn(milliseconds));
      return (await Promise.all(counts)).reduce((sum, count) => sum + count, 0);
    },
    close() {
      for (const counter of counters) counter.stop();
    },
  };
}

function openConnections(options: Omit<LoadOptions, 'milliseconds'>): Promise<Counter[]> {
  return Promise.all(Array.from({ length: options.connections }, () => openConnection(options)));
}

interface Counter {
  start(): void;
  /** Sends for some milliseconds. @returns the responses, when the last one has arrived */
  turn(milliseconds: number): Promise<number>;
  /** Stops sending. @returns the responses since the start, including those to requests in flight */
  drain(): Promise<number>;
  /** @returns the responses since the start */
  stop(): number;
}

async function openConnection({
  port,
  request,
  status,
}: Omit<LoadOptions, 'milliseconds'>): Promise<Counter> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  await new Promise((resolve, reject) => socket.once('connect', resolve).once('error', reject));
  const bytes = Buffer.from(request);
  const expected = `HTTP/1.1 ${status} `;
  let answers = 0;
  let isStopped = false;
  let isLast = false;
  /** Ends a turn. */
  let onTurnEnd: ((answers: number) => void) | undefined;
  let turnEndsAt = 0;
  const drained = Promise.withResolvers<number>();
  /** Bytes of the current response that have not arrived yet. */
  let missing = 0;
  let begun: Buffer = Buffer.alloc(0);
  socket.on('error', () => {});
  socket.on('data', (chunk: Buffer) => {
    if (isStopped) return;
    if (missing > 0) missing -= chunk.length;
    else {
      begun = begun.length === 0 ? chunk : Buffer.concat([begun, chunk]);
      const length = answerLength(begun);
      if (length === undefined) return;
      if (begun.toString('latin1', 0, expected.length) !== expected) {
        isStopped = true;
        drained.resolve(answers);
        onTurnEnd?.(answers);
        console.error(begun.toString());
        return;
      }
      missing = length - begun.length;
      begun = Buffer.alloc(0);
    }
    if (missing > 0) return;
    answers += 1;
    if (onTurnEnd !== undefined && performance.now() >= turnEndsAt) return onTurnEnd(answers);
    if (!isLast) return void socket.write(bytes);
    drained.resolve(answers);
    socket.destroy();
  });
  return {
    start: () => socket.write(bytes),
    turn(milliseconds) {
      answers = 0;
      turnEndsAt = performance.now() + milliseconds;
      return new Promise((resolve) => {
        onTurnEnd = resolve;
        socket.write(bytes);
      });
    },
    drain() {
      isLast = true;
      return drained.promise;
    },
    stop() {
      isStopped = true;
      socket.destroy();
      return answers;
    },
  };
}

/** Returns the length of the response that begins here; undefined while its head is incomplete. */
function answerLength(bytes: Buffer): number | undefined {
  const headEnd = bytes.indexOf('\r\n\r\n');
  if (headEnd < 0) return undefined;
  const head = bytes.toString('latin1', 0, headEnd).toLowerCase();
  const at = head.indexOf('content-length: ');
  return headEnd + 4 + (at < 0 ? 0 : Number.parseInt(head.slice(at + 16, at + 26), 10));
}
