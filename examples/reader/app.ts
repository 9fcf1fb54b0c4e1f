/**
 * The app's web server: connect, callback, articles, a live stream of deliveries.
 */

import { randomBytes } from 'node:crypto';
import cookie from '@fastify/cookie';
import formbody from '@fastify/formbody';
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import * as oidc from 'openid-client';
import { Api, ApiError } from './api.ts';
import { Inbox } from './inbox.ts';
import { beginAuthorization, finishAuthorization, type PendingAuthorization } from './oauth.ts';
import { connectedPage, deliveryItem, welcomePage } from './page.ts';

export interface ReaderOptions {
  baseUrl: string;
  /** The app's base URL, such as `http://localhost:4000`. */
  url: string;
  configuration: oidc.Configuration;
}

/** The session of one browser. A real app keeps this in its database. */
interface Session {
  pending?: PendingAuthorization;
  accountId?: string;
  message?: string;
}

/** The connection of one account, in all of its browsers. */
interface Connection {
  api: Api;
  accountId: string;
  refreshToken: string;
  /** The key in its subscription's URL. */
  key: string;
}

const sessionCookie = 'reader_session';

/** Builds the app; the caller makes it listen. */
export function buildReader(options: ReaderOptions): FastifyInstance {
  const app = Fastify({ forceCloseConnections: true });
  app.register(cookie);
  app.register(formbody);
  const inbox = new Inbox();
  inbox.register(app);
  const sessions = new Map<string, Session>();
  const connections = new Map<string, Connection>();
  const connectionOf = ({ accountId }: Session) => connections.get(accountId ?? '');

  app.get('/', async (request, reply) => {
    const session = sessionOf(sessions, request, reply);
    reply.type('text/html; charset=utf-8').header('cache-control', 'no-store');
    const { message } = session;
    const connection = connectionOf(session);
    delete session.message;
    if (connection === undefined) return welcomePage(options.baseUrl, message);
    try {
      const articles = await connection.api.articles();
      const received = inbox.received.filter(({ key }) => key === connection.key);
      return connectedPage({ accountId: connection.accountId, articles, received });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
      connections.delete(connection.accountId);
      return welcomePage(options.baseUrl, 'Reader no longer has access. Connect it again to continue.');
    }
  });

  app.get('/connect', async (request, reply) => {
    const session = sessionOf(sessions, request, reply);
    session.pending = await beginAuthorization(options.configuration, `${options.url}/callback`);
    return reply.redirect(session.pending.url.href);
  });

  app.get('/callback', async (request, reply) => {
    const session = sessionOf(sessions, request, reply);
    const { pending } = session;
    if (pending === undefined) return reply.redirect('/');
    delete session.pending;
    try {
      const connection = await connect(options, inbox, new URL(request.url, options.url), pending);
      session.accountId = connection.accountId;
      const older = connections.get(connection.accountId);
      connections.set(connection.accountId, connection);
      // Its subscription would receive every event a second time.
      if (older !== undefined) await disconnect(options, inbox, older);
    } catch (error) {
      if (!(error instanceof oidc.AuthorizationResponseError)) throw error;
      session.message =
        error.error === 'access_denied' ? 'You denied access, so Reader is not connected.' : error.message;
    }
    return reply.redirect('/');
  });

  app.post<{ Body: { title: string; body: string } }>('/articles', async (request, reply) => {
    const connection = connectionOf(sessionOf(sessions, request, reply));
    await connection?.api.createArticle(request.body.title, request.body.body);
    return reply.redirect('/', 303);
  });

  app.post<{ Params: { id: string } }>('/articles/:id/publish', async (request, reply) => {
    const connection = connectionOf(sessionOf(sessions, request, reply));
    const articles = (await connection?.api.articles()) ?? [];
    const article = articles.find(({ id }) => id === request.params.id);
    if (article !== undefined) await connection?.api.publish(article);
    return reply.redirect('/', 303);
  });

  app.post('/disconnect', async (request, reply) => {
    const session = sessionOf(sessions, request, reply);
    const connection = connectionOf(session);
    if (connection !== undefined) {
      await disconnect(options, inbox, connection);
      connections.delete(connection.accountId);
      session.message = 'Disconnected. Access was withdrawn, and the subscription has ended.';
    }
    return reply.redirect('/', 303);
  });

  app.get('/stream', async (request, reply) => {
    const session = sessionOf(sessions, request, reply);
    reply.hijack();
    const stream = reply.raw;
    stream.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    stream.write(': watching\n\n');
    const unwatch = inbox.watch((delivery) => {
      if (delivery.key !== connectionOf(session)?.key) return;
      stream.write(`event: delivery\ndata: ${JSON.stringify(deliveryItem(delivery))}\n\n`);
    });
    request.raw.on('close', unwatch);
  });
  return app;
}

async function connect(
  options: ReaderOptions,
  inbox: Inbox,
  callbackUrl: URL,
  pending: PendingAuthorization,
): Promise<Connection> {
  const tokens = await finishAuthorization(options.configuration, callbackUrl, pending);
  const api = new Api(options.baseUrl, tokens.access_token);
  const { account } = await api.whoAmI();
  // The secret URL discourages forged requests; the signature rejects them.
  const key = randomBytes(16).toString('hex');
  const url = `${options.url}/webhooks/timestamp/${key}`;
  const subscription = await api.subscribe(url, ['article.*', 'comment.*'], 'timestamp');
  inbox.expect(key, await api.secretOf(subscription));
  return { api, accountId: account?.id ?? '', refreshToken: tokens.refresh_token ?? '', key };
}

/** Withdraws access, which ends the subscription. */
async function disconnect(
  { configuration }: ReaderOptions,
  inbox: Inbox,
  { refreshToken, key }: Connection,
): Promise<void> {
  await oidc.tokenRevocation(configuration, refreshToken);
  inbox.forget(key);
}

function sessionOf(sessions: Map<string, Session>, request: FastifyRequest, reply: FastifyReply): Session {
  const known = request.cookies[sessionCookie];
  const session = known === undefined ? undefined : sessions.get(known);
  if (session !== undefined) return session;
  const id = randomBytes(16).toString('hex');
  const fresh: Session = {};
  sessions.set(id, fresh);
  reply.setCookie(sessionCookie, id, { httpOnly: true, sameSite: 'lax', path: '/' });
  return fresh;
}
