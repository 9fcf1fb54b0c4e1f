/**
 * An open-loop load generator, as a separate process: requests begin at their time, whether or not earlier ones have their responses. It
 * keeps connections open as Node.js's own agent does, one request at a time on each, but writes prepared bytes and reads only status
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
  /** Whole requests, taken at random by weight. */
  requests: readonly { text: string; weight: number }[];
  /** A response counts up to this time after the request was due. */
  latencyMsMax: number;
}

export interface PhaseResult {
  offered: number;
  /** Accepted in time, and accepted too late. */
  good: number;
  late: number;
  refused: number;
  /** Other statuses, closed connections, and requests that got no connection or response. */
  failed: number;
  /** Of accepted requests, from the time when they were due. */
  p50Ms: number;
  p99Ms: number;
  /** Requests for which no connection was free at first. */
  queued: number;
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
  dueAt = 0;
  isBusy = false;
  #head = '';
  #missing = 0;
  #status = 0;

  constructor(port: number, onResponse: (connection: Connection, status: number) => void) {
    this.socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.socket.on('error', () => {});
    this.socket.on('close', () => onResponse(this, 0));
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

async function run(phase: Phase): Promise<PhaseResult> {
  const { port, rate, seconds, connectionsMax, latencyMsMax } = phase;
  const total = phase.requests.reduce((sum, { weight }) => sum + weight, 0);
  const texts = phase.requests.map(({ text, weight }) => ({
    bytes: Buffer.from(text),
    share: weight / total,
  }));
  const idle: Connection[] = [];
  const waiting: number[] = [];
  let nextWaiting = 0;
  let open = 0;
  let inFlight = 0;
  const result = { offered: 0, good: 0, late: 0, refused: 0, failed: 0, queued: 0 };
  const latencies: number[] = [];

  const pick = () => {
    let left = Math.random();
    for (const { bytes, share } of texts) {
      left -= share;
      if (left <= 0) return bytes;
    }
    return (texts[0] as (typeof texts)[0]).bytes;
  };
  const send = (connection: Connection, dueAt: number) => {
    connection.dueAt = dueAt;
    connection.isBusy = true;
    inFlight += 1;
    connection.socket.write(pick());
  };
  const onResponse = (connection: Connection, status: number) => {
    if (status === 0) open -= 1;
    if (connection.isBusy) {
      connection.isBusy = false;
      inFlight -= 1;
      const ms = performance.now() - connection.dueAt;
      if (connection.dueAt < measuredFrom) {
        // Part of the ramp.
      } else if (status >= 200 && status < 300) {
        latencies.push(ms);
        if (ms <= latencyMsMax) result.good += 1;
        else result.late += 1;
      } else if (status === 503) result.refused += 1;
      else result.failed += 1;
    }
    if (status === 0) return;
    const dueAt = waiting[nextWaiting];
    if (dueAt === undefined) idle.push(connection);
    else {
      nextWaiting += 1;
      send(connection, dueAt);
    }
  };
  const offer = (dueAt: number) => {
    if (dueAt >= measuredFrom) result.offered += 1;
    let connection = idle.pop();
    while (connection?.socket.destroyed === true) connection = idle.pop();
    if (connection !== undefined) return send(connection, dueAt);
    if (open < connectionsMax) {
      open += 1;
      return send(new Connection(port, onResponse), dueAt);
    }
    result.queued += 1;
    waiting.push(dueAt);
  };

  const startedAt = performance.now();
  const measuredFrom = startedAt + rampMs;
  const endsAt = measuredFrom + seconds * 1_000;
  const before = process.cpuUsage();
  await new Promise<void>((resolve) => {
    let sentUntil = startedAt;
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
  const { user, system } = process.cpuUsage(before);
  const elapsed = (performance.now() - startedAt) / 1_000;
  for (const until = performance.now() + graceMs; inFlight > 0 && performance.now() < until; ) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  result.failed += waiting.slice(nextWaiting).filter((dueAt) => dueAt >= measuredFrom).length + inFlight;
  for (const { socket } of idle) socket.destroy();
  latencies.sort((a, b) => a - b);
  const quantile = (share: number) => latencies[Math.floor(latencies.length * share)] ?? Number.NaN;
  return {
    ...result,
    p50Ms: quantile(0.5),
    p99Ms: quantile(0.99),
    seconds,
    processor: (user + system) / 1e6 / elapsed,
  };
}
