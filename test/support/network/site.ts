/**
 * An HTTPS site of another party, on loopback. A server started with `siteEgress` reaches it under every name below
 * `apps.example`.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { ServerOptions } from '../../../src/server.ts';
import { authorityCertificate, serverCertificate, serverKey } from './certificates.ts';

/** What names resolve to: loopback, except for names that resolve to private addresses. */
const addresses: Readonly<Record<string, string[]>> = {
  'inside.apps.example': ['10.0.0.7'],
  'cloud.apps.example': ['169.254.169.254'],
  'half.apps.example': ['127.0.0.1', '192.168.1.1'],
};

export const siteEgress: NonNullable<ServerOptions['egress']> = {
  extraCa: authorityCertificate,
  resolveHost: async (host) => addresses[host] ?? ['127.0.0.1'],
};

export interface Document {
  status?: number;
  headers?: Record<string, string>;
  /** JSON, or a string sent unchanged. */
  body?: unknown;
}

export type Respond = (request: IncomingMessage, response: ServerResponse, body: string) => void;

export interface Site {
  /** Returns the URL of a path on one of the site's names. */
  url: (path: string, name?: string) => string;
  /** Sets the response for a path. */
  serve: (path: string, document: Document | Respond) => void;
  /** Returns the number of requests for a path so far. */
  requests: (path: string) => number;
}

interface Scope {
  after: (hook: () => Promise<void>) => unknown;
}

export async function startSite(scope: Scope): Promise<Site> {
  const documents = new Map<string, Document | Respond>();
  const counts = new Map<string, number>();
  const server = createServer({ cert: serverCertificate, key: serverKey }, (request, response) => {
    const path = request.url ?? '/';
    counts.set(path, (counts.get(path) ?? 0) + 1);
    const document = documents.get(path) ?? { status: 404 };
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      if (typeof document === 'function') {
        document(request, response, Buffer.concat(chunks).toString());
        return;
      }
      const { status = 200, headers = {}, body = '' } = document;
      response.writeHead(status, { 'content-type': 'application/json', ...headers });
      response.end(typeof body === 'string' ? body : JSON.stringify(body));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  scope.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return {
    url: (path, name = 'reader') => `https://${name}.apps.example:${port}${path}`,
    serve: (path, document) => documents.set(path, document),
    requests: (path) => counts.get(path) ?? 0,
  };
}
