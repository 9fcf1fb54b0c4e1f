/**
 * A measured server, as a separate process. `node api_server.ts bare <port> <file>` starts Fastify routes that return
 * Nuncio's responses from the file, `{ one, list, call }`, as objects in memory and the text of a tool call. `node api_server.ts nuncio <port>
 * <database>` starts the complete server and discards its log. It prints `ready`, and exits on SIGTERM. SIGUSR2
 * starts a profile, which is written at the exit to the file named last.
 */

import { readFileSync, writeFileSync } from 'node:fs';
import { Session } from 'node:inspector/promises';
import Fastify from 'fastify';
import { pino } from 'pino';
import { openLogDestination } from '../../src/commands/log_destination.ts';
import { loadConfig } from '../../src/config/config.ts';
import { shortenCollectionPauses } from '../../src/garbage_collection.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { secret } from './article.ts';

const [what, port = '', source = '', profileFile = ''] = process.argv.slice(2);
let close: () => Promise<void>;
if (what === 'bare') {
  const app = Fastify();
  const { one, list, call } = JSON.parse(readFileSync(source, 'utf8'));
  app.get('/articles/:id', async () => one);
  app.get('/articles', async () => list);
  app.post('/mcp', (_request, reply) => reply.type('application/json').send(call));
  await app.listen({ port: Number(port), host: '127.0.0.1' });
  close = () => app.close();
} else {
  // As `nuncio start` does.
  shortenCollectionPauses();
  // The rate limiter counts, but its limit is never reached.
  const limit = process.env.BENCH_CONCURRENT_REQUESTS;
  const environment = {
    PORT: port,
    // Tokens of the one server are good at the other.
    NUNCIO_BASE_URL: process.env.BENCH_BASE_URL ?? `http://localhost:${port}`,
    NUNCIO_RATE_LIMIT: '1000000000',
    ...(limit === undefined ? {} : { NUNCIO_CONCURRENT_REQUESTS: limit }),
  };
  const running = await startServer({
    config: loadConfig(environment, 'dev'),
    platform: await loadPlatform(null),
    databaseUrl: source,
    secret,
    logger: pino({ level: 'info' }, openLogDestination('/dev/null')),
  });
  close = () => running.close();
}
const session = new Session();
session.connect();
process.once('SIGUSR2', async () => {
  await session.post('Profiler.enable');
  await session.post('Profiler.setSamplingInterval', { interval: 200 });
  await session.post('Profiler.start');
});
process.once('SIGTERM', async () => {
  if (profileFile !== '') {
    const { profile } = await session.post('Profiler.stop');
    writeFileSync(profileFile, JSON.stringify(profile));
  }
  await close();
  process.exit(0);
});
console.log('ready');
