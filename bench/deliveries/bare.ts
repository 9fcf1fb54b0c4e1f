/** The bare loop: an `undici` pool that only signs and POSTs. It is a separate process, like the senders compared with it. */

import { createHmac } from 'node:crypto';
import { type Dispatcher, Pool } from 'undici';
import { version } from '../../src/version.ts';

const [url = '', countText = '', concurrencyText = '64'] = process.argv.slice(2);
const total = Number(countText);
const body = Buffer.from(process.env.BENCH_BODY ?? '{}');
const { origin, pathname } = new URL(url);
const pool = new Pool(origin, { connections: Number(concurrencyText), pipelining: 1 });
const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
let started = 0;
let ended = 0;
const { promise: done, resolve: finish, reject: fail } = Promise.withResolvers<void>();

class Handler implements Dispatcher.DispatchHandler {
  onRequestStart(): void {}
  onResponseStart(): void {}
  onResponseData(): void {}
  onResponseEnd(): void {
    ended += 1;
    if (ended === total) finish();
    else if (started < total) send();
  }
  onResponseError(_controller: unknown, error: Error): void {
    fail(error);
  }
}

function send(): void {
  started += 1;
  const timestamp = Math.floor(Date.now() / 1_000);
  const signature = createHmac('sha256', secret).update(`${timestamp}.`).update(body).digest('hex');
  const headers = [
    'content-type',
    'application/json',
    'user-agent',
    `Nuncio/${version}`,
    'accept-encoding',
    'identity',
    'Nuncio-Event',
    'push',
    'Nuncio-Sequence',
    String(started),
    'Nuncio-Delivery',
    '01982f3e-8d2a-8c3b-8f4d-2f6b8f0f5a11',
    'Nuncio-Signature',
    `t=${timestamp},v1=${signature}`,
    'Nuncio-Attempt',
    '1',
  ];
  pool.dispatch({ method: 'POST', path: pathname, headers, body }, new Handler());
}

const startedAt = performance.now();
for (let count = 0; count < Number(concurrencyText); count++) send();
await done;
const seconds = (performance.now() - startedAt) / 1_000;
const { user, system } = process.cpuUsage();
console.log(JSON.stringify({ perSecond: total / seconds, cpuMicros: (user + system) / total }));
await pool.destroy();
