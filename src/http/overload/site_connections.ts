/**
 * Connections of the networks of IPv6 sites. A network that finds no room in what its site may have takes the place of a connection
 * of the network of the site that has most, if possible of one without a request. Otherwise one that has used up the share of the site would keep out its
 * other networks.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Caller } from './caller.ts';

interface Connection {
  readonly socket: Socket;
  readonly site: string;
  readonly owner: string;
  readonly network: Network;
  /** Requests without a complete response. */
  requests: number;
}

/** The connections of one. */
interface Network {
  readonly idle: Set<Connection>;
  readonly busy: Set<Connection>;
}

export class SiteConnections {
  readonly #sites = new Map<string, Map<string, Network>>();
  /** By address and port of the client: a TLS connection is another object than its TCP connection. */
  readonly #connections = new Map<string, Connection>();

  /** Counts a connection until it closes. @param caller of an address. Without a site, nothing is counted */
  add(socket: Socket, { owner, group: site }: Caller): void {
    if (site === null) return;
    const networks = this.#sites.get(site) ?? new Map<string, Network>();
    const network = networks.get(owner) ?? { idle: new Set(), busy: new Set() };
    const connection: Connection = { socket, site, owner, network, requests: 0 };
    const name = nameOf(socket);
    network.idle.add(connection);
    networks.set(owner, network);
    this.#sites.set(site, networks);
    this.#connections.set(name, connection);
    socket.once('close', () => {
      if (this.#connections.get(name) === connection) this.#connections.delete(name);
      this.#remove(connection);
    });
  }

  /** To be called for each request. */
  use({ socket }: IncomingMessage, response: ServerResponse): void {
    if (this.#connections.size === 0) return;
    const connection = this.#connections.get(nameOf(socket));
    if (connection === undefined) return;
    const { idle, busy } = connection.network;
    connection.requests += 1;
    if (idle.delete(connection)) busy.add(connection);
    response.once('close', () => {
      connection.requests -= 1;
      if (connection.requests === 0 && busy.delete(connection)) idle.add(connection);
    });
  }

  #remove(connection: Connection): void {
    const { site, owner, network } = connection;
    network.idle.delete(connection);
    network.busy.delete(connection);
    const networks = this.#sites.get(site);
    // Another one of that name may have come since.
    if (sizeOf(network) === 0 && networks?.get(owner) === network) networks.delete(owner);
    if (networks?.size === 0) this.#sites.delete(site);
  }

  /** Closes a connection for one of a caller. @returns false if no other network of its site has at least two more than the caller */
  makeRoom({ owner, group: site }: Caller): boolean {
    const networks = site === null ? undefined : this.#sites.get(site);
    if (networks === undefined) return false;
    let largest: Network | undefined;
    let most = sizeOf(networks.get(owner)) + 1;
    for (const network of networks.values())
      if (sizeOf(network) > most) [largest, most] = [network, sizeOf(network)];
    const [connection] = largest?.idle.size === 0 ? largest.busy : (largest?.idle ?? []);
    if (connection === undefined) return false;
    // It closes later.
    this.#remove(connection);
    connection.socket.destroy();
    return true;
  }
}

const sizeOf = (network: Network | undefined) =>
  network === undefined ? 0 : network.idle.size + network.busy.size;

function nameOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress} ${remotePort}`;
}
