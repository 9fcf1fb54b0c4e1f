/**
 * An open-loop load generator, as a separate process: requests begin at their time, whether or not earlier ones have their responses. A
 * request that finds no free connection is not sent, and is counted apart. It keeps connections open, one request at a time on each, but writes prepared bytes and reads only status
 * and length, so that little of the machine is taken from the server.
 *
 * The parent sends `Phase`s, and gets a `PhaseResult` for each.
 */

import { connect, type Socket } from 'node:net';

export interface Phase {
  port: number;
  /** Requests a second. */
  rate: number;
  seconds: number;
  connectionsMax: number;
  /** Whole requests, taken at random by weight, and the number of their kind. */
  requests: readonly { text: string; weight: number; kind: number }[];
  /** A response counts up to this time after the request was due. */
  latencyMsMax: number;
}

export interface PhaseResult {
  offered: number;
  /** Accepted in time, all and by kind, and accepted too late. */
  good: number;
  goodOf: readonly number[];
  late: number;
  refused: number;
  /** Other statuses, closed connections, and requests that got no response. */
  failed: number;
  /** How many of them by status; 0 is a closed connection. */
  failures: ReadonlyMap<number, number>;
  /** Requests that were not sent, because no connection was free: a limit of the generator. */
  unsent: number;
  /** Of accepted requests, from the time when they were due. */
  p50Ms: number;
  p99Ms: number;
  /** Of refused requests. */
  refusedP50Ms: number;
  seconds: number;
  /** Share of one processor that the generator used. */
  processor: number;
}

/** The rate of a phase grows to its full value in this time. */
const rampMs = 2_000;
const tickMs = 2;
/** What has no response so long after the end failed. */
const graceMs = 10_000;

process.on('message', async (phase: Phase) => {
  process.send?.(await run(phase));
});
process.once('disconnect', () => process.exit());

class Connection {
  readonly socket: Socket;
  readonly isOpen: Promise<unknown>;
  dueAt = 0;
  kind = 0;
  isBusy = false;
  #head = '';
  #missing = 0;
  #status = 0;

  constructor(port: number, onResponse: (connection: Connection, status: number) => void) {
    this.socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.socket.on('error', () => {});
    this.socket.on('close', () => onResponse(this, 0));
    this.isOpen = new Promise((resolve) => this.socket.once('connect', resolve).once('close', resolve));
    this.socket.on('data', (chunk: Buffer) => {
      let { length } = chunk;
      if (this.#missing === 0) {
        this.#head += chunk.toString('latin1');
        const end = this.#head.indexOf('\r\n\r\n');
        if (end < 0) return;
        const size = /\r\ncontent-length: (\d+)/i.exec(this.#head.slice(0, end))?.[1];
        this.#status = Number(this.#head.slice(9, 12));
        this.#missing = end + 4 + Number(size ?? 0);
        length = this.#head.length;
        this.#head = '';
      }
      this.#missing -= length;
      if (this.#missing <= 0) {
        this.#missing = 0;
        onResponse(this, this.#status);
      }
    });
  }
}

/** Returns requests at random by weight. */
function picker(requests: Phase['requests']): () => { bytes: Buffer; kind: number } {
  const total = requests.reduce((sum, { weight }) => sum + weight, 0);
  const all = requests.map(({ text, weight, kind }) => ({
    bytes: Buffer.from(text),
    share: weight / total,
    kind,
  }));
  return () => {
    let left = Math.random();
    const found = all.find(({ share }) => {
      left -= share;
      return left <= 0;
    });
    return (found ?? all[0]) as (typeof all)[number];
  };
}

/** Calls `offer` at the rate of the phase, with the time at which each request is due. */
function pace({ rate, seconds }: Phase, startedAt: number, offer: (dueAt: number) => void): Promise<void> {
  const endsAt = startedAt + rampMs + seconds * 1_000;
  let sentUntil = startedAt;
  return new Promise((resolve) => {
    const timer = setInterval(() => {
      const now = Math.min(performance.now(), endsAt);
      while (sentUntil < now) {
        const part = Math.min(1, Math.max(0.1, (sentUntil - startedAt) / rampMs));
        sentUntil += 1_000 / (rate * part);
        offer(sentUntil);
      }
      if (now < endsAt) return;
      clearInterval(timer);
      resolve();
    }, tickMs);
  });
}

/** One phase: its connections, and what became of its requests. */
class Run {
  /** Requests that are due earlier do not count. */
  measuredFrom = Number.POSITIVE_INFINITY;
  readonly latencies: number[] = [];
  readonly refusedLatencies: number[] = [];
  readonly failures = new Map<number, number>();
  readonly counts = { offered: 0, good: 0, late: 0, refused: 0, failed: 0, unsent: 0 };
  readonly #phase: Phase;
  readonly goodOf: number[];
  readonly #pick: ReturnType<typeof picker>;
  readonly #idle: Connection[] = [];
  readonly #connections = new Set<Connection>();
  #inFlight = 0;

  constructor(phase: Phase) {
    this.#phase = phase;
    this.#pick = picker(phase.requests);
    this.goodOf = Array(Math.max(...phase.requests.map(({ kind }) => kind)) + 1).fill(0);
  }

  /** Opens all connections, some at a time. */
  async open(): Promise<void> {
    while (this.#connections.size < this.#phase.connectionsMax) {
      const some = Array.from({ length: 50 }, () => this.#connect());
      await Promise.all(some.map(({ isOpen }) => isOpen));
      this.#idle.push(...some);
    }
  }

  offer(dueAt: number): void {
    if (dueAt >= this.measuredFrom) this.counts.offered += 1;
    // The one that is idle for longest, so that the server closes none of them.
    let connection = this.#idle.shift();
    while (connection?.socket.destroyed === true) connection = this.#idle.shift();
    if (connection === undefined && this.#connections.size < this.#phase.connectionsMax) {
      connection = this.#connect();
    }
    if (connection !== undefined) this.#send(connection, dueAt);
    else if (dueAt >= this.measuredFrom) this.counts.unsent += 1;
  }

  /** Waits for the last responses. What has none failed. */
  async end(): Promise<void> {
    for (const until = performance.now() + graceMs; this.#inFlight > 0 && performance.now() < until; ) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    this.counts.failed += this.#inFlight;
    for (const { socket } of this.#connections) socket.destroy();
  }

  #connect(): Connection {
    const { port } = this.#phase;
    const connection = new Connection(port, (each, status) => this.#onResponse(each, status));
    this.#connections.add(connection);
    return connection;
  }

  #send(connection: Connection, dueAt: number): void {
    connection.dueAt = dueAt;
    connection.isBusy = true;
    this.#inFlight += 1;
    const { bytes, kind } = this.#pick();
    connection.kind = kind;
    connection.socket.write(bytes);
  }

  #onResponse(connection: Connection, status: number): void {
    if (status === 0) this.#connections.delete(connection);
    if (connection.isBusy) {
      connection.isBusy = false;
      this.#inFlight -= 1;
      // The ramp does not count.
      if (connection.dueAt >= this.measuredFrom)
        this.#note(status, connection.kind, performance.now() - connection.dueAt);
    }
    if (status !== 0) this.#idle.push(connection);
  }

  #note(status: number, kind: number, ms: number): void {
    if (status === 503) {
      this.counts.refused += 1;
      this.refusedLatencies.push(ms);
    } else if (status < 200 || status >= 300) {
      this.counts.failed += 1;
      this.failures.set(status, (this.failures.get(status) ?? 0) + 1);
    } else {
      this.latencies.push(ms);
      const isLate = ms > this.#phase.latencyMsMax;
      this.counts[isLate ? 'late' : 'good'] += 1;
      if (!isLate) this.goodOf[kind] = (this.goodOf[kind] ?? 0) + 1;
    }
  }
}

async function run(phase: Phase): Promise<PhaseResult> {
  const measured = new Run(phase);
  await measured.open();
  const startedAt = performance.now();
  measured.measuredFrom = startedAt + rampMs;
  const before = process.cpuUsage();
  await pace(phase, startedAt, (dueAt) => measured.offer(dueAt));
  const { user, system } = process.cpuUsage(before);
  const elapsed = (performance.now() - startedAt) / 1_000;
  await measured.end();
  const { counts, goodOf, failures, latencies, refusedLatencies } = measured;
  return {
    ...counts,
    goodOf,
    failures,
    p50Ms: quantile(latencies, 0.5),
    p99Ms: quantile(latencies, 0.99),
    refusedP50Ms: quantile(refusedLatencies, 0.5),
    seconds: phase.seconds,
    processor: (user + system) / 1e6 / elapsed,
  };
}

function quantile(values: readonly number[], share: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * share)] ?? Number.NaN;
}
