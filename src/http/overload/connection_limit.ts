/**
 * Limits the connections of clients: in total, and for each network and each site its share (shared/share.ts), so that none can take them
 * all. A site has 65,536 networks. Proxies that the operator trusts have no share, because their connections are those of everyone. A
 * connection above the limit is closed at once.
 */

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { Counter, Gauge, type Registry } from 'prom-client';
import { addressMatcher } from '../network.ts';
import { callerOfAddress } from './caller.ts';
import { CallerCounts } from './caller_counts.ts';

export interface ConnectionLimitOptions {
  registry: Registry;
  /** 0 for no limit. */
  connectionsMax: number;
  /** Addresses or CIDR ranges of reverse proxies. */
  trustProxy: readonly string[];
}

export function limitConnections(
  app: FastifyInstance,
  { registry, connectionsMax, trustProxy }: ConnectionLimitOptions,
): void {
  const open = new CallerCounts();
  const isProxy = addressMatcher(trustProxy);
  const refused = new Counter({
    name: 'nuncio_connections_refused_total',
    help: 'Connections of clients that were closed at once, because there were too many of their network or in total.',
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
    const hasRoom = caller === null ? total < connectionsMax : open.hasRoom(connectionsMax, caller, total);
    if (connectionsMax > 0 && !hasRoom) {
      refused.inc();
      socket.destroy();
      return;
    }
    total += 1;
    if (caller !== null) open.change(caller, 1);
    socket.once('close', () => {
      total -= 1;
      if (caller !== null) open.change(caller, -1);
    });
  });
}
