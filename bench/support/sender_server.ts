/**
 * A sender compared with Nuncio that accepts single requests: `node sender_server.ts <name> <port> <database>
 * <origin>`. It accepts `POST /events` with one event each (Fastify, JSON), adds the job, and responds 202 once the
 * job is durable. The sender runs in the same process. It prints `ready`, and exits on SIGTERM.
 */

import { randomUUID } from 'node:crypto';
import Fastify from 'fastify';
import { graphileWorkerSettings, openGraphileWorkerSender } from './graphile_worker_sender.ts';
import { openPgBossSender, pgBossSettings } from './pg_boss_sender.ts';
import type { Sender } from './sender.ts';

const [name, port, databaseUrl = '', origin = ''] = process.argv.slice(2);
const sender = await openSender();

/** @returns null for `bare`, which only accepts requests */
async function openSender(): Promise<Sender | null> {
  if (name === 'bare') return null;
  return name === 'pg-boss'
    ? openPgBossSender(databaseUrl, origin, pgBossSettings)
    : openGraphileWorkerSender(databaseUrl, origin, graphileWorkerSettings);
}

let sequence = 0;
const app = Fastify();
app.post<{ Body: { body: unknown } }>('/events', async (request, reply) => {
  const id = randomUUID();
  sequence += 1;
  await sender?.publish([
    {
      id,
      path: '/hooks',
      sequence,
      secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
      body: JSON.stringify(request.body.body),
    },
  ]);
  return reply.code(202).send({ id, ids: [id] });
});
await sender?.start();
await app.listen({ port: Number(port), host: '127.0.0.1' });
process.once('SIGTERM', async () => {
  await app.close();
  await sender?.stop();
  process.exit(0);
});
console.log('ready');
