/**
 * Limits the connections of clients: in total, and for each network and each site its share (shared/share.ts), so that none can take them
 * all. A site has 65,536 networks, of which one with less takes the place of a connection of another (site_connections.ts). A connection above the limit is
 * closed at once.
 *
 * Proxies that the operator trusts have no share, because their connections are those of everyone. Each belongs to the client of its last request,
 * also after the response: a client of HTTP/2 that reads nothing keeps a connection of its proxy for each stream, and one that does not
 * send its body keeps one of a proxy that does not wait for it. A request above the share gets 503, and its connection closes. To close it at once
 * would look like a failure of the node, so that the proxy would send nobody there.
 */

import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { Counter, Gauge, type Registry } from 'prom-client';
import type { ProblemPage } from '../errors.ts';
import { addressMatcher, forwardedAddress } from '../network.ts';
import { type Caller, callerOfAddress } from './caller.ts';
import { CallerCounts } from './caller_counts.ts';
import { refuse } from './refusal.ts';
import { SiteConnections } from './site_connections.ts';

export interface ConnectionLimitOptions {
  registry: Registry;
  /** 0 for no limit. */
  connectionsMax: number;
  /** Addresses or CIDR ranges of reverse proxies. */
  trustProxy: readonly string[];
  /** Tells browsers. */
  page: ProblemPage;
}

export function limitConnections(
  app: FastifyInstance,
  { registry, connectionsMax, trustProxy, page }: ConnectionLimitOptions,
): void {
  const open = new CallerCounts();
  const ofSites = new SiteConnections();
  const isProxy = addressMatcher(trustProxy);
  const refused = new Counter({
    name: 'nuncio_connections_refused_total',
    help: 'Connections of clients that were closed at once, and requests of a proxy that got 503, because there were too many of their network or in total.',
    registers: [registry],
  });
  let total = 0;
  new Gauge({
    name: 'nuncio_client_connections',
    help: 'Connections of clients.',
    registers: [registry],
    collect() {
      this.set(total);
    },
  });

  const server = app.server as Server;
  server.on('connection', (socket: Socket) => {
    const address = socket.remoteAddress ?? '';
    const caller = isProxy(address) ? null : callerOfAddress(address);
    const hasRoom = () =>
      caller === null
        ? total < connectionsMax
        : open.hasRoom(connectionsMax, caller, total) ||
          (open.hasOwnRoom(connectionsMax, caller, total) && ofSites.makeRoom(caller));
    if (connectionsMax > 0 && !hasRoom()) {
      refused.inc();
      socket.destroy();
      return;
    }
    total += 1;
    if (caller !== null) {
      open.change(caller, 1);
      ofSites.add(socket, caller);
    }
    socket.once('close', () => {
      total -= 1;
      if (caller !== null) open.change(caller, -1);
    });
  });
  if (connectionsMax === 0) return;
  beforeAll(app, (request, response) => ofSites.use(request, response));
  if (trustProxy.length === 0) return;

  const addressOf = forwardedAddress(isProxy);
  /** Of connections of proxies. */
  const owners = new WeakMap<Socket, Caller>();
  const above = new WeakSet<IncomingMessage>();
  const assign = (request: IncomingMessage, response: ServerResponse) => {
    const { socket } = request;
    if (socket.destroyed || !isProxy(socket.remoteAddress ?? '')) return;
    const address = addressOf(request);
    // The proxy's own requests, or those of a proxy that does not say whose they are.
    if (isProxy(address)) return;
    const owner = callerOfAddress(address);
    const before = owners.get(socket);
    if (before !== undefined) open.change(before, -1);
    else socket.once('close', () => open.change(owners.get(socket) as Caller, -1));
    owners.set(socket, owner);
    // Not of the total: during a flood, that has many whose requests are about to be refused.
    const hasRoom = open.hasRoom(connectionsMax, owner);
    open.change(owner, 1);
    if (hasRoom) return;
    above.add(request);
    response.shouldKeepAlive = false;
  };
  beforeAll(app, assign);
  app.addHook('onRequest', (request, reply, done) => {
    if (!above.has(request.raw)) return done();
    refused.inc();
    request.isRefused = true;
    refuse(request, reply, page);
  });
}

/** Calls a listener for each request, before all that responds. */
function beforeAll(app: FastifyInstance, listener: RequestListener): void {
  app.addHook('onReady', async () => {
    app.server.prependListener('request', listener);
    if (app.server.listenerCount('checkExpectation') > 0)
      app.server.prependListener('checkExpectation', listener);
  });
}
