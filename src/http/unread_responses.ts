/**
 * Bounds the responses that clients do not read. Node.js keeps what a client has not taken in memory, for as long as the connection
 * is open, and no limit of requests covers that. All clients share the memory: the address that leaves most unread loses its connections.
 *
 *   response → unread → taken | disconnected (unread for two minutes, or for seconds while there is too much)
 */

import { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { networksOf } from './network.ts';

export interface UnreadLimits {
  /** Bytes that all clients of this node together may leave unread. */
  bytesMax: number;
  /** Milliseconds without progress after which a client is disconnected, and after which it may be if there is too much. */
  unreadMsMax: number;
  unreadMsMin: number;
  /** Milliseconds between checks. */
  checkMs: number;
}

const defaultLimits: UnreadLimits = {
  bytesMax: 134_217_728,
  unreadMsMax: 120_000,
  unreadMsMin: 5_000,
  checkMs: 1_000,
};

/** What Node.js has for a client. A TLS connection counts its plaintext. */
interface Connection {
  readonly writableLength: number;
  destroy(): unknown;
}

/** A connection whose client has not taken everything. */
interface Unread {
  connection: Connection;
  network: string;
  bytes: number;
  /** When the client last took something, on the monotonic clock. */
  since: number;
}

/** Watches the connections of an application. */
export function limitUnreadResponses(app: FastifyInstance, limits: UnreadLimits = defaultLimits): void {
  /** Open connections that had a request, with the network of the client. */
  const networks = new Map<Connection, string>();
  let unread = new Map<Connection, Unread>();
  app.addHook('onRequest', (request, _reply, done) => {
    const { socket } = request.raw;
    // Requests of this process to itself have no connection, and no number of unread bytes.
    if (!(socket instanceof Socket)) return done();
    if (!networks.has(socket)) socket.once('close', () => networks.delete(socket));
    // Behind a proxy, requests of several clients may share a connection.
    networks.set(socket, networksOf(request.ip).near);
    done();
  });
  const timer = setInterval(() => {
    const now = performance.now();
    const before = unread;
    unread = new Map();
    for (const [connection, network] of networks) {
      const bytes = connection.writableLength;
      if (bytes === 0) continue;
      const known = before.get(connection);
      const since = known === undefined || bytes < known.bytes ? now : known.since;
      unread.set(connection, { connection, network, bytes, since });
    }
    for (const { connection } of chooseUnread([...unread.values()], now, limits)) connection.destroy();
  }, limits.checkMs);
  timer.unref();
  app.addHook('onClose', async () => clearInterval(timer));
}

/** @returns those to disconnect: the longest unread ones of whoever leaves most, until what is left is little enough */
export function chooseUnread<T extends Omit<Unread, 'connection'>>(
  unread: readonly T[],
  now: number,
  { bytesMax, unreadMsMax, unreadMsMin }: UnreadLimits,
): T[] {
  const { stalled = [], others = [] } = Object.groupBy(unread, ({ since }) =>
    now - since > unreadMsMax ? 'stalled' : 'others',
  );
  let total = others.reduce((sum, { bytes }) => sum + bytes, 0);
  if (total <= bytesMax) return stalled;
  const candidates: { each: T; ofNetwork: number }[] = [];
  for (const own of Map.groupBy(others, ({ network }) => network).values()) {
    let ofNetwork = own.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const each of own.toSorted((a, b) => a.since - b.since)) {
      if (now - each.since < unreadMsMin) break;
      candidates.push({ each, ofNetwork });
      ofNetwork -= each.bytes;
    }
  }
  // One sort in place of one for each: thousands of networks may each have a connection.
  candidates.sort((a, b) => b.ofNetwork - a.ofNetwork);
  const chosen = [...stalled];
  for (const { each } of candidates) {
    if (total <= bytesMax) break;
    chosen.push(each);
    total -= each.bytes;
  }
  return chosen;
}
