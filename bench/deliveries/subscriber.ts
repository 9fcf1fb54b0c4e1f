/**
 * The subscriber of the benchmarks, a separate process. It does as little as possible, so that the benchmarks measure
 * the sender. It reads HTTP/1.1 from the socket itself, counts, and responds 200. On request it reports to its parent
 * what it counted, and the times of the first and last receipt.
 */

import { createServer, type Socket } from 'node:net';
import { monotonicMs } from '../support/measure.ts';

const answer = Buffer.from('HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok');
let count = 0;
let firstAt = 0;
let lastAt = 0;
/**
 * For each receipt the mark in its body (`ref`: milliseconds of the clock that all processes share) and the time;
 * recorded on request.
 */
let receipts: Receipt[] | null = null;
const hangMs = 15_000;
/** Requests that hang on the port that accepts, too. */
const hangStart = Buffer.from('POST /hang ');

type Mode = 'accept' | 'hang';

/** A mark, and the time of its receipt. */
export type Receipt = [mark: number, at: number];

function serve(socket: Socket, mode: Mode): void {
  let held: Buffer | undefined;
  socket.setNoDelay(true);
  socket.on('error', () => {});
  socket.on('data', (chunk: Buffer) => {
    let data = held === undefined ? chunk : Buffer.concat([held, chunk]);
    held = undefined;
    for (;;) {
      const end = data.indexOf('\r\n\r\n');
      if (end < 0) break;
      const length = contentLength(data, end);
      const whole = end + 4 + length;
      if (data.length < whole) break;
      if (mode === 'accept' && !data.subarray(0, hangStart.length).equals(hangStart)) {
        note(data.subarray(end + 4, whole));
        socket.write(answer);
      } else {
        const timer = setTimeout(() => socket.write(answer), hangMs);
        socket.once('close', () => clearTimeout(timer));
      }
      data = data.subarray(whole);
      if (data.length === 0) return;
    }
    held = data;
  });
}

function contentLength(data: Buffer, end: number): number {
  const head = data.toString('latin1', 0, end);
  let at = head.indexOf('ontent-length: ');
  if (at < 0) at = head.indexOf('ontent-Length: ');
  return Number.parseInt(head.slice(at + 15, at + 25), 10);
}

function note(body: Buffer): void {
  lastAt = performance.timeOrigin + performance.now();
  if (count === 0) firstAt = lastAt;
  count += 1;
  if (receipts === null) return;
  const match = /"ref":"refs\/heads\/([\d.]+)/.exec(body.toString('latin1', 0, 2_000));
  if (match) receipts.push([Number(match[1]), monotonicMs()]);
}

const ports: Record<string, number> = {};
for (const mode of ['accept', 'hang'] as const) {
  const server = createServer((socket) => serve(socket, mode));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  ports[mode] = (server.address() as { port: number }).port;
}
process.on('message', (message: string) => {
  if (message === 'reset' || message === 'latency') {
    count = 0;
    receipts = message === 'latency' ? [] : null;
  }
  process.send?.({
    count,
    firstAt,
    lastAt,
    cpu: process.cpuUsage(),
    receipts: message === 'report' ? receipts : null,
  });
});
process.on('disconnect', () => process.exit(0));
process.send?.({ ports });
