/**
 * Limits the connections of clients: in total, and for each network its share (shared/share.ts), so that one cannot take them all. Proxies
 * that the operator trusts have no share, because their connections are those of everyone. A connection above the limit is closed
 * at once.
 */

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { Counter, Gauge, type Registry } from 'prom-client';
import { isFree } from '../../shared/share.ts';
import { addressMatcher, networksOf } from '../network.ts';

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
  const open = new Map<string, number>();
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
    const network = isProxy(address) ? null : networksOf(address).near;
    const own = network === null ? 0 : (open.get(network) ?? 0);
    if (connectionsMax > 0 && !isFree(connectionsMax, total, own)) {
      refused.inc();
      socket.destroy();
      return;
    }
    total += 1;
    if (network !== null) open.set(network, own + 1);
    socket.once('close', () => {
      total -= 1;
      if (network === null) return;
      const left = (open.get(network) ?? 1) - 1;
      if (left === 0) open.delete(network);
      else open.set(network, left);
    });
  });
}
