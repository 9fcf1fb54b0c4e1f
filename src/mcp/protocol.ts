/**
 * The versions of the protocol. From 2026-07-28 on it is stateless: each request names its version, in `_meta` and in headers that
 * repeat parts of the body for proxies. Clients of earlier versions begin with `initialize`; nothing is remembered of it, and no
 * session is created. HTTP with two endpoints (2024-11-05) is not supported.
 */

import type { IncomingHttpHeaders } from 'node:http';
import { isObject, RpcError, type RpcRequest, rpcCodes } from './json_rpc.ts';

const statelessVersion = '2026-07-28';
/** Versions that begin with `initialize`, newest first. */
const initializedVersions: readonly string[] = ['2025-11-25', '2025-06-18', '2025-03-26'];
/** What `server/discover` reports. 2025-03-26 is still accepted. */
export const supportedVersions: readonly string[] = [statelessVersion, '2025-11-25', '2025-06-18'];

/** How a request speaks: statelessly, or as a client that began with `initialize`. */
export type Era = 'stateless' | 'initialized';

const meta = (name: string) => `io.modelcontextprotocol/${name}`;
export const serverInfoKey = meta('serverInfo');
export const subscriptionIdKey = meta('subscriptionId');
const versionKey = meta('protocolVersion');
const capabilitiesKey = meta('clientCapabilities');

/**
 * Finds how a request speaks, and checks what each request of that kind must have.
 * @throws RpcError with status 400
 */
export function readEra({ id, method, params }: RpcRequest, headers: IncomingHttpHeaders): Era {
  const header = readHeader(headers['mcp-protocol-version']);
  const given = isObject(params._meta) ? params._meta : {};
  const version = given[versionKey];
  const isInitialized =
    version === undefined && (header === undefined || initializedVersions.includes(header));
  if (isInitialized) return 'initialized';
  // A notification has no response and no effect here, so only its version is checked.
  if (id === undefined) {
    requireVersion(String(version ?? header));
    return 'stateless';
  }
  if (version === undefined && header !== statelessVersion) requireVersion(String(header));
  if (typeof version !== 'string') throw missing(versionKey, 'a protocol version');
  if (!isObject(given[capabilitiesKey])) throw missing(capabilitiesKey, 'an object');
  requireHeader('MCP-Protocol-Version', header, version);
  requireVersion(version);
  requireHeader('Mcp-Method', readHeader(headers['mcp-method']), method);
  if (method === 'tools/call') requireHeader('Mcp-Name', readHeader(headers['mcp-name']), params.name);
  return 'stateless';
}

function requireVersion(version: string): void {
  if (version === statelessVersion) return;
  throw new RpcError(rpcCodes.unsupportedVersion, 'Unsupported protocol version.', {
    status: 400,
    data: { supported: supportedVersions, requested: version },
  });
}

function missing(key: string, what: string): RpcError {
  return new RpcError(rpcCodes.invalidParams, `params._meta["${key}"] must be ${what}.`, { status: 400 });
}

function requireHeader(name: string, value: string | undefined, expected: unknown): void {
  if (value !== undefined && value === expected) return;
  const problem = value === undefined ? 'is missing' : 'differs from the body';
  throw new RpcError(rpcCodes.headerMismatch, `The header ${name} ${problem}.`, { status: 400 });
}

const encoded = /^=\?base64\?([A-Za-z0-9+/]*={0,2})\?=$/;

/** Values that a header cannot contain as they are come in base64. */
function readHeader(value: string | string[] | undefined): string | undefined {
  if (value === undefined) return undefined;
  // Node.js joins repeated headers, which then differ from the body.
  const text = String(value).trim();
  const base64 = encoded.exec(text)?.[1];
  return base64 === undefined ? text : Buffer.from(base64, 'base64').toString('utf8');
}

/** @returns the requested version if it begins with `initialize`, otherwise the newest that does */
export function negotiate(requested: string): string {
  return initializedVersions.includes(requested) ? requested : (initializedVersions[0] as string);
}
