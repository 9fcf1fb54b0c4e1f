/**
 * Turns of tunnels through the egress proxy. Proxies have few connections at once, and a tunnel takes one for as long as it is open, also while its host hangs. So
 * those that are open have a maximum, of which tenants have shares.
 *
 *   wanted → waiting for its turn, while an unused one is closed → opening → open → closed: the next one's turn
 */

import type { Socket } from 'node:net';
import { LimitedWork } from '../shared/limited_work.ts';
import { lingeringCount, resetLingering } from './closing.ts';
import { type EgressProxy, openTunnel } from './proxy.ts';

/** Milliseconds for which a tunnel waits for its turn. */
export const tunnelWaitMsMax = 3_000;

export interface TunnelRequest {
  addresses: readonly string[];
  port: number;
  /** Milliseconds for the proxy to open it. */
  timeoutMs: number;
  tenant: string;
  /** Called with the milliseconds until its turn. */
  onTurn: (waitedMs: number) => void;
}

/** Somebody who keeps idle connections. */
export interface IdleConnections {
  readonly idleCount: number;
  /** Closes one. @param tenant who has its place; null for anybody @returns whether there was one */
  closeIdle: (tenant: string | null) => boolean;
}

interface Tunnels {
  turns: LimitedWork;
  keepers: Set<IdleConnections>;
}

/** Of the proxies of this thread. */
const tunnelsOf = new WeakMap<EgressProxy, Tunnels>();

function tunnelsTo(proxy: EgressProxy): Tunnels {
  let tunnels = tunnelsOf.get(proxy);
  if (tunnels === undefined) {
    tunnels = { turns: new LimitedWork(proxy.connectionsMax, true), keepers: new Set() };
    tunnelsOf.set(proxy, tunnels);
  }
  return tunnels;
}

/** Whoever keeps idle connections closes one if another waits for its turn. @returns ends that */
export function offerRoom(proxy: EgressProxy, keeper: IdleConnections): () => void {
  const { keepers } = tunnelsTo(proxy);
  keepers.add(keeper);
  return () => keepers.delete(keeper);
}

/** Whether a connection should not be kept: whoever has its place waits for another one, or none is left. Waits of others change nothing for it. */
export function isRoomWanted(proxy: EgressProxy | undefined, tenant: string | null): boolean {
  if (proxy === undefined) return false;
  const { turns } = tunnelsTo(proxy);
  return turns.isBusy || (tenant !== null && turns.waitingOf(tenant) > 0);
}

/**
 * Closes a connection of the tenant of which nothing is wanted, or else one of others if that helps it: first those that only linger. A host that responded before it has read the
 * request may then not get the rest of it.
 */
function makeRoom({ turns, keepers }: Tunnels, tenant: string): void {
  const closeOne = (whose: string | null) =>
    resetLingering(whose) || [...keepers].some((keeper) => keeper.closeIdle(whose));
  if (closeOne(tenant)) return;
  const unused = [...keepers].reduce((sum, { idleCount }) => sum + idleCount, lingeringCount());
  if (turns.couldBegin(tenant, unused)) closeOne(null);
}

/**
 * Opens a tunnel when it is the tenant's turn. Its place is free again when the connection is closed.
 * @throws EgressError, or NoTurnError if its turn did not come in time
 */
export function openTunnelInTurn(
  proxy: EgressProxy,
  request: TunnelRequest,
): Promise<{ socket: Socket; address: string }> {
  const { addresses, port, timeoutMs, tenant, onTurn } = request;
  const tunnels = tunnelsTo(proxy);
  const { promise, resolve, reject } = Promise.withResolvers<{ socket: Socket; address: string }>();
  const from = performance.now();
  let hasBegun = false;
  const work = async () => {
    hasBegun = true;
    onTurn(performance.now() - from);
    const opened = await openTunnel(proxy, addresses, port, timeoutMs);
    resolve(opened);
    const { promise: closed, resolve: end } = Promise.withResolvers<void>();
    if (opened.socket.closed) end();
    else opened.socket.once('close', () => end());
    await closed;
  };
  tunnels.turns.run(tenant, work, undefined, AbortSignal.timeout(tunnelWaitMsMax)).catch(reject);
  if (!hasBegun) makeRoom(tunnels, tenant);
  return promise;
}
