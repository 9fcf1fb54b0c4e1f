/**
 * RFC 9112 section 3.2: a request of HTTP/1.1 has exactly one `Host`, with a valid value. The server itself ignores it, but a
 * proxy that reads another one of two would treat the request as one for another host.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { Problem } from './problem.ts';

/** RFC 3986 section 3.2.2: a name, an IPv4 address or an IPv6 address in brackets; then the port. */
const authority = /^(?:[\w\-.~!$&'()*+,;=]|%[\dA-Fa-f]{2})*(?::\d*)?$|^\[[\dA-Fa-f:.]+\](?::\d*)?$/;

/** Responds 400 to other requests, before anything else looks at them. */
export function requireHostHeader(app: FastifyInstance): void {
  app.addHook('onRequest', (request, _reply, done) => {
    if (hasValidHost(request)) done();
    else {
      const detail = 'A request must have one Host header, with a host and optionally a port.';
      done(new Problem(400, detail, { code: 'invalid-host', headers: { connection: 'close' } }));
    }
  });
}

function hasValidHost({ raw }: FastifyRequest): boolean {
  const { rawHeaders, httpVersion } = raw;
  const hosts = rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === 'host');
  if (hosts.length === 0) return httpVersion === '1.0';
  return hosts.length === 1 && authority.test(hosts[0] as string);
}
