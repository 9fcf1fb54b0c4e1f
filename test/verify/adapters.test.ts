/** The adapters in Express, Fastify and Hono: deliveries of a real server, forged ones, and bodies that were parsed before. */

import assert from 'node:assert/strict';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, type TestContext, test } from 'node:test';
import express from 'express';
import Fastify from 'fastify';
import { Hono } from 'hono';
import {
  deliveryOf,
  expressVerifier,
  fastifyVerifier,
  type Handle,
  honoVerifier,
  inOrder,
  memoryStore,
  once,
  type ReceiverOptions,
} from '../../src/verify/verify.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

interface Handled {
  kind: string;
  body: unknown;
}

/** Each has the endpoint `POST /hooks`, which handles deliveries. */
type Application = (options: ReceiverOptions, handle: Handle, handled: Handled[]) => Promise<RequestListener>;

const frameworks: Record<string, Application> = {
  async express(options, handle, handled) {
    const app = express();
    app.post('/hooks', expressVerifier(options), async (request, response) => {
      await handle(deliveryOf(request), ({ kind }) => handled.push({ kind, body: request.body }));
      response.status(204).end();
    });
    app.use(express.json());
    return app;
  },
  async 'express with express.raw'(options, handle, handled) {
    const app = express();
    app.use(express.raw({ type: '*/*' }));
    app.post('/hooks', expressVerifier(options), async (request, response) => {
      await handle(deliveryOf(request), ({ kind }) => handled.push({ kind, body: request.body }));
      response.status(204).end();
    });
    return app;
  },
  async fastify(options, handle, handled) {
    const app = Fastify();
    after(() => app.close());
    app.register(async (hooks) => {
      fastifyVerifier(hooks, options);
      hooks.get('/hooks', async () => assert.fail('not verified'));
      hooks.post('/hooks', async (request, reply) => {
        await handle(deliveryOf(request), ({ kind }) => handled.push({ kind, body: request.body }));
        return reply.code(204).send();
      });
    });
    await app.ready();
    return app.routing;
  },
  async hono(options, handle, handled) {
    const app = new Hono();
    app.onError((_error, c) => c.text('failed', 500));
    app.post('/hooks', honoVerifier(options), async (c) => {
      const body = await c.req.json();
      await handle(deliveryOf(c), ({ kind }) => handled.push({ kind, body }));
      return c.body(null, 204);
    });
    return async (incoming, response) => {
      const chunks = incoming.method === 'POST' ? await Array.fromAsync(incoming) : [];
      const request = new Request(`http://localhost${incoming.url}`, {
        method: incoming.method as string,
        headers: Object.entries(incoming.headers) as [string, string][],
        ...(chunks.length > 0 ? { body: Buffer.concat(chunks) } : {}),
      });
      const answer = await app.fetch(request);
      response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text());
    };
  },
};

async function listen(t: TestContext, listener: RequestListener): Promise<string> {
  const subscriber = createServer(listener);
  await new Promise<void>((resolve) => subscriber.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    subscriber.closeAllConnections();
    subscriber.close();
  });
  return `http://127.0.0.1:${(subscriber.address() as AddressInfo).port}/hooks`;
}

/** A delivery to send by hand. */
async function receiveOne(secret: string): Promise<{ headers: Record<string, string>; body: string }> {
  const subscriber = await startSubscriber({ after });
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, secret });
  await publish(publisher, app.account, ['by hand']);
  const [received] = await subscriber.waitFor(1);
  const headers = Object.entries(received?.headers ?? {}).filter(([name]) =>
    /^(nuncio-|content-type$)/.test(name),
  );
  return { headers: Object.fromEntries(headers) as Record<string, string>, body: received?.body ?? '' };
}

for (const [name, application] of Object.entries(frameworks)) {
  test(`${name} handles deliveries of the server in every format, also after a failure`, async (t) => {
    for (const signature of ['timestamp', 'sha256', 'standard', 'ed25519']) {
      const secret = makeSecret();
      const options = signature === 'ed25519' ? { publicKeys: `${server.baseUrl}/meta` } : { secret };
      const handled: Handled[] = [];
      const inMemory = once(memoryStore());
      let failures = signature === 'timestamp' ? 1 : 0;
      const handle: Handle = (delivery, handler) =>
        inMemory(delivery, (one) => {
          failures -= 1;
          if (failures >= 0) throw new Error('the first attempt fails');
          return handler(one);
        });
      const url = await listen(t, await application(options, handle, handled));
      const app = await createApp(server);
      const given = signature === 'ed25519' ? {} : { secret };
      const { id } = await subscribe(app, { url, signature, ...given, retry_schedule: [1] });
      await publish(publisher, app.account, ['framework']);
      await until(
        async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
        (items) => items.length === 1 && items[0].state === 'succeeded',
      );
      assert.deepEqual(
        handled.map(({ kind, body }) => [kind, (body as { ref: string }).ref]),
        [['push', 'refs/heads/framework']],
      );
    }
  });

  test(`${name} refuses what is not verified and says why`, async (t) => {
    const secret = makeSecret();
    const handled: Handled[] = [];
    const url = await listen(t, await application({ secret }, once(memoryStore()), handled));
    const { headers, body } = await receiveOne(secret);
    const send = async (changed: RequestInit): Promise<[number, string]> => {
      const response = await fetch(url, { method: 'POST', headers, body, ...changed });
      const text = await response.text();
      const { code, error, message } = JSON.parse(text || '{}');
      if (!response.ok) assert.ok(message.length > 20);
      return [response.status, code ?? error];
    };
    assert.deepEqual(await send({ body: `${body} ` }), [401, 'no-matching-secret']);
    assert.deepEqual(await send({ body: 'x' }), [401, 'no-matching-secret']);
    assert.deepEqual(await send({ headers: {} }), [401, 'missing-header']);
    assert.deepEqual(await send({ headers: { ...headers, 'nuncio-signature': 't=1,v1=x' } }), [
      401,
      'too-old',
    ]);
    assert.equal((await send({ body: null }))[0], 401);
    assert.equal(handled.length, 0);
    assert.equal((await send({}))[0], 204);
    assert.equal((await send({}))[0], 204);
    assert.equal(handled.length, 1);
  });
}

test('express responds with 413 to a body of more than a mebibyte', async (t) => {
  const listener = await (frameworks.express as Application)({ secret: 'x' }, once(memoryStore()), []);
  const url = await listen(t, listener);
  const post = async (bytes: number) =>
    (await fetch(url, { method: 'POST', body: 'x'.repeat(bytes) })).status;
  assert.deepEqual([await post(1_048_577), await post(5_000_000), await post(1_048_576)], [413, 413, 401]);
});

test('a body that express.json has parsed is refused with words that say what to do', async (t) => {
  const secret = makeSecret();
  const app = express();
  app.use(express.json());
  app.post('/hooks', expressVerifier({ secret }), () => assert.fail('not verified'));
  const { headers, body } = await receiveOne(secret);
  const response = await fetch(await listen(t, app), { method: 'POST', headers, body });
  assert.equal(response.status, 500);
  const { error, message } = (await response.json()) as { error: string; message: string };
  assert.equal(error, 'body-parsed');
  for (const word of ['Express', 'Fastify', 'Hono']) assert.match(message, new RegExp(word));
});

test('Fastify verifies requests without a body, too', async (t) => {
  const listener = await (frameworks.fastify as Application)({ secret: 'x' }, once(memoryStore()), []);
  assert.equal((await fetch(await listen(t, listener))).status, 401);
});

test('a delivery that is busy or out of order is 503 or 409 in Express and Fastify', async (t) => {
  const secret = makeSecret();
  const { headers, body } = await receiveOne(secret);
  const store = memoryStore();
  const [, lane] = /^(.*)-/.exec(headers['nuncio-delivery'] ?? '') as unknown as [string, string];
  for (const name of ['express', 'fastify']) {
    const application = frameworks[name] as Application;
    const url = await listen(t, await application({ secret }, inOrder(store), []));
    const send = async () => (await fetch(url, { method: 'POST', headers, body })).status;
    const later = { id: `${lane}-000000000005`, sequence: 5 };
    if (name === 'express') {
      await inOrder(store)(later, async () => assert.equal(await send(), 503));
    }
    assert.equal(await send(), 409);
  }
});

test('deliveryOf throws for a request that no adapter has verified', () => {
  assert.throws(() => deliveryOf({}), /not verified/);
});

test('a platform that has read the body keeps its bytes as rawBody', async () => {
  const secret = makeSecret();
  const { headers, body } = await receiveOne(secret);
  const request = { headers, body: JSON.parse(body), rawBody: Buffer.from(body) };
  const errors = await new Promise<unknown[]>((resolve) => {
    void expressVerifier({ secret })(request as never, {} as never, (...given) => resolve(given));
  });
  assert.deepEqual(errors, []);
  assert.equal(deliveryOf(request).kind, 'push');
});
