/**
 * Protection from DNS rebinding: a web page whose host name resolves to this machine must not use the endpoint. Programs other
 * than browsers send no `Origin`. A page of another origin also cannot read a response without the CORS headers.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { isLoopbackHost } from '../config/config.ts';
import { withoutQuery } from '../connections/redaction.ts';
import { Problem } from '../http/problem.ts';
import { isWebOrigin } from './settings.ts';

/** Request headers that pages of allowed origins may send. */
const acceptedHeaders =
  'Accept, Authorization, Content-Type, DPoP, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id';
/** Response headers that they may read. */
const exposedHeaders =
  'DPoP-Nonce, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Request-Id, Retry-After, WWW-Authenticate';

/** Maximum length of a host name in characters (RFC 1035), with a port. What others send must not crowd out what to do. */
const hostLengthMax = 261;

/**
 * @param onRefused called with what was sent, what was expected, and what to do
 * @returns a function that throws Problem 403 for a request of a foreign page, and adds the CORS headers for others
 */
export function originCheck(
  baseUrl: string,
  allowedOrigins: readonly string[],
  onRefused: (request: FastifyRequest, explanation: string) => void,
) {
  const { origin: own, hostname } = new URL(baseUrl);
  const allowed = new Set([own, ...allowedOrigins]);
  const isLocal = isLoopbackHost(hostname);
  /** The last one that was accepted: a client sends the same one again. */
  let localHost: string | undefined;
  return (request: FastifyRequest, reply: FastifyReply): void => {
    reply.header('vary', 'Origin, Authorization');
    const { origin, host = '' } = request.headers;
    if (origin !== undefined && !allowed.has(origin)) {
      onRefused(request, explainOrigin(origin, own));
      throw refused('Pages of this origin');
    }
    // Behind a proxy the host can be any name, so it is checked on loopback only.
    if (isLocal && host !== localHost) {
      if (!isLoopbackHost(URL.parse(`http://${host}`)?.hostname ?? '')) {
        onRefused(
          request,
          `The request was for the host ${host.slice(0, hostLengthMax)}. Expected ${hostname}, because the base URL is on loopback. Use ${own}, or set NUNCIO_BASE_URL to the URL that clients know.`,
        );
        throw refused('Requests for this host');
      }
      localHost = host;
    }
    if (origin === undefined) return;
    reply.headers({
      'access-control-allow-origin': origin,
      'access-control-expose-headers': exposedHeaders,
    });
  };
}

function explainOrigin(origin: string, own: string): string {
  const expected = `called the endpoint for agents. Expected a page of ${own}, or of mcp.allowedOrigins in nuncio.config.ts.`;
  return isWebOrigin(origin)
    ? `A page of ${origin.slice(0, hostLengthMax)} ${expected} If this page may use the endpoint, add its origin there.`
    : `A page with the origin ${withoutQuery(origin)} ${expected} Only origins that begin with https://, or with http:// on loopback, can be added there: serve the page from one.`;
}

function refused(what: string): Problem {
  return new Problem(403, `${what} may not use this endpoint.`, { code: 'origin-not-allowed' });
}

/** Responds to a CORS preflight request. */
export function sendPreflight(reply: FastifyReply): FastifyReply {
  return reply
    .code(204)
    .headers({
      allow: 'POST',
      'access-control-allow-methods': 'POST',
      'access-control-allow-headers': acceptedHeaders,
      'access-control-max-age': '7200',
    })
    .send();
}
