/**
 * A server under measurement, as a process of its own: `node api_server.ts bare <port>` is a Fastify route that
 * answers the same article out of memory, `node api_server.ts nuncio <port> <database>` is the whole server with
 * its log written to nowhere. Says `ready` on its standard output, and ends on SIGTERM.
 */

import Fastify from 'fastify';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { article, secret } from './article.ts';

const [what, port = '', databaseUrl = ''] = process.argv.slice(2);
let close: () => Promise<void>;
if (what === 'bare') {
  const app = Fastify();
  app.get('/articles/:id', async () => article);
  app.get('/articles', async () => ({ items: Array(50).fill(article) }));
  await app.listen({ port: Number(port), host: '127.0.0.1' });
  close = () => app.close();
} else {
  // The limit counts, and is never reached.
  const environment = { PORT: port, NUNCIO_RATE_LIMIT: '1000000000' };
  const running = await startServer({
    config: loadConfig(environment, 'dev'),
    platform: await loadPlatform(null),
    databaseUrl,
    secret,
    logger: pino({ level: 'info' }, pino.destination('/dev/null')),
  });
  close = () => running.close();
}
process.once('SIGTERM', () => {
  close().then(() => process.exit(0));
});
console.log('ready');
