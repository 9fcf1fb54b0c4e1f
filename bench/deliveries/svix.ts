/**
 * Svix behind its own API, for `single`: the program that SVIX_SERVER names (https://github.com/svix/svix-webhooks, built with
 * `cargo build --release -p svix-server`). Its queue is in memory, or in Redis if SVIX_REDIS has an address.
 */

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { sql } from 'kysely';
import { type Bench, eventBody, postRequest } from './support.ts';

const startMsMax = 60_000;

export async function openSvix(bench: Bench, hook: string) {
  const { SVIX_SERVER: program = '', SVIX_REDIS: redis } = process.env;
  if (program === '') throw new Error('SVIX_SERVER must name the program');
  await sql`create database svix`.execute(bench.db);
  const database = new URL(bench.databaseUrl);
  database.pathname = '/svix';
  const { port } = bench.config;
  const env = {
    SVIX_DB_DSN: database.href,
    SVIX_DB_POOL_MAX_SIZE: '20',
    SVIX_JWT_SECRET: 'a secret of this measurement only',
    SVIX_LISTEN_ADDRESS: `127.0.0.1:${port}`,
    SVIX_WHITELIST_SUBNETS: '["127.0.0.0/8"]',
    SVIX_QUEUE_TYPE: redis === undefined ? 'memory' : 'redis',
    ...(redis === undefined ? {} : { SVIX_REDIS_DSN: redis }),
  };
  execFileSync(program, ['migrate'], { env });
  const child = spawn(program, [], { env, stdio: ['ignore', 'ignore', 'inherit'] });
  const token = /\S+\s*$/
    .exec(execFileSync(program, ['jwt', 'generate'], { env, encoding: 'utf8' }))?.[0]
    .trim() as string;
  const call = async (path: string, body: unknown): Promise<{ id: string }> => {
    const response = await fetch(`http://127.0.0.1:${port}/api/v1${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`Svix responded ${response.status}: ${await response.text()}`);
    return (await response.json()) as { id: string };
  };
  const app = await within(startMsMax, () => call('/app/', { name: 'bench' }));
  await call('/event-type/', { name: 'push', description: 'push' });
  await call(`/app/${app.id}/endpoint/`, { url: hook, version: 1, filterTypes: ['push'] });
  return {
    pid: child.pid as number,
    port,
    request: postRequest(`/api/v1/app/${app.id}/msg/`, token, {
      eventType: 'push',
      payload: eventBody('main'),
    }),
    status: 202,
    isDelivering: true,
    async stop() {
      child.kill('SIGTERM');
      await once(child, 'exit');
    },
  };
}

/** Tries again until the server listens. */
async function within<T>(milliseconds: number, ask: () => Promise<T>): Promise<T> {
  const startedAt = performance.now();
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (performance.now() - startedAt > milliseconds) throw error;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  }
}
