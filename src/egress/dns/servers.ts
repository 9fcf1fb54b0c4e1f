/** The system's name servers. */

import dns from 'node:dns';
import { readFileSync } from 'node:fs';
import { isIP, isIPv4 } from 'node:net';
import type { NameServer } from './message.ts';

const file = '/etc/resolv.conf';
/** Milliseconds for which the file is not read again. It may change: a network may begin after the process. */
const rereadMs = 5_000;
const defaultPort = 53;

/** @returns gives the servers of the file, or else those that Node found when the process started */
export function createSystemServers(path: string = file): () => readonly NameServer[] {
  let servers: readonly NameServer[] = [];
  let readAt = Number.NEGATIVE_INFINITY;
  return () => {
    const now = performance.now();
    if (now - readAt >= rereadMs) {
      readAt = now;
      const found = readResolvConf(path);
      servers = found.length > 0 ? found : dns.getServers().map(readServer);
    }
    return servers;
  };
}

/** Reads the lines `nameserver`. */
function readResolvConf(path: string): NameServer[] {
  try {
    return [...readFileSync(path, 'utf8').matchAll(/^nameserver[ \t]+(\S+)/gm)]
      .map(([, address = '']) => ({ address, port: defaultPort }))
      .filter(({ address }) => isIP(address) > 0);
  } catch {
    return [];
  }
}

/** @param text as `getServers` of `node:dns` writes it: an address, or `address:port` with brackets around IPv6 */
export function readServer(text: string): NameServer {
  const [, inBrackets, bracketsPort] = /^\[(.*)\](?::(\d+))?$/.exec(text) ?? [];
  if (inBrackets !== undefined) return { address: inBrackets, port: Number(bracketsPort ?? defaultPort) };
  const [address = '', port] = text.split(':');
  if (isIPv4(address)) return { address, port: Number(port ?? defaultPort) };
  return { address: text, port: defaultPort };
}
