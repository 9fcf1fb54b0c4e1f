/** A worker of a test of `node:cluster`: listens at TEST_PORT. */

import Fastify from 'fastify';
import { listen } from '../../../src/http/listening.ts';

const app = Fastify();
app.get('/', async () => 'here');
await listen(app, '127.0.0.1', Number(process.env.TEST_PORT)).then(
  () => process.send?.('listens'),
  (error: Error) => process.send?.(error.message),
);
