/**
 * The HTTP application: a Fastify instance with everything that all responses share. Each response has a request id and the
 * server's version, each error is a problem document, and each request writes one log line.
 */

import type { ServerOptions } from 'node:https';
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyRequest,
  type FastifyServerOptions,
  LogController,
} from 'fastify';
import { type Config, isLoopbackHost } from '../config/config.ts';
import { newId } from '../crypto/ids.ts';
import { version } from '../version.ts';
import { addBodyParser, closeUnreadBodies } from './body_limit.ts';
import { handleClientError, handleError, handleNotFound, type ProblemPage, rejectConnect } from './errors.ts';
import { limitHeadFields } from './head_fields.ts';
import { requireHostHeader } from './host_header.ts';
import { parseJson } from './json.ts';
import { loggedPath } from './logged_path.ts';
import { refuseEncodedPaths } from './path_spelling.ts';
import { BoundedResponse } from './response_head.ts';
import { limitUnreadResponses } from './unread_responses.ts';

/** Fastify types the handler of its own errors, such as an invalid URL, more narrowly than other error handlers. */
type FrameworkErrors = NonNullable<FastifyServerOptions['frameworkErrors']>;

/** The largest accepted body. */
const bodyBytesMax = 1_048_576;

export interface Timeouts {
  /** A request must arrive completely within this time. */
  requestMs: number;
  /** The head of a request must arrive within this time, so that connections which send it slowly, or nothing, end soon. */
  headMs: number;
  /** Interval between checks for requests that timed out. */
  checkMs: number;
}

const defaultTimeouts: Timeouts = { requestMs: 60_000, headMs: 20_000, checkMs: 5_000 };

/** The largest head of a request; Node.js's own default, and that of most proxies. */
const headBytesMax = 16_384;

/**
 * How long requests in flight may continue after the server begins to stop. Shorter than the timeout of the whole stop, so
 * that one stuck request does not make every stop unclean.
 */
const drainTimeoutMs = 10_000;

/**
 * How long browsers use only https (RFC 6797): one year. Without `includeSubDomains`, because subdomains may belong to
 * other servers.
 */
const transportSecuritySeconds = 31_536_000;

/** Monitoring requests these paths every few seconds. Successful probes are logged at debug level only. */
const probes: ReadonlySet<string> = new Set(['/livez', '/readyz']);

/**
 * @param logger a pino logger; every log line of a request carries its id
 * @param tls null for plain HTTP
 * @param problemPage renders 404 for browsers; null to send them a problem document
 * @param timeouts of requests that arrive slowly
 */
export function createApplication(
  config: Config,
  logger: FastifyBaseLogger,
  tls: ServerOptions | null = null,
  problemPage: ProblemPage | null = null,
  timeouts: Timeouts = defaultTimeouts,
): FastifyInstance {
  const serverOptions = {
    connectionsCheckingInterval: timeouts.checkMs,
    headersTimeout: timeouts.headMs,
    maxHeaderSize: headBytesMax,
    // Node.js's own check for `Host` responds without a problem document.
    requireHostHeader: false,
    ServerResponse: BoundedResponse,
  };
  const app = Fastify({
    ...(tls === null ? { http: serverOptions } : { https: { ...tls, ...serverOptions } }),
    loggerInstance: logger,
    // The hook below logs one line per request, instead of Fastify's two.
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    // Never take the id from the client, which could forge log lines with it.
    requestIdHeader: false,
    genReqId: () => newId(),
    bodyLimit: bodyBytesMax,
    // Fastify has no request timeout by default, so a stopping server could wait forever.
    requestTimeout: timeouts.requestMs,
    // RFC 9112 section 3.2.2: accept the absolute form. Its authority is ignored, like Host.
    rewriteUrl: ({ url = '/' }) =>
      url.replace(/^https?:\/\/[^/?#]*(?=(.?))/i, (_origin, next) => (next === '/' ? '' : '/')),
    trustProxy: config.trustProxy.length > 0 ? [...config.trustProxy] : false,
    routerOptions: { maxParamLength: 2_048, ignoreTrailingSlash: false },
    clientErrorHandler: handleClientError,
    // Fastify's type for this handler differs from that of error handlers in its type parameters only.
    frameworkErrors: handleError as unknown as FrameworkErrors,
    // While the server stops, requests in flight finish and new ones get 503.
    return503OnClosing: true,
    forceCloseConnections: 'idle',
  });

  app.removeAllContentTypeParsers();
  addBodyParser(app, 'application/json', parseJson);
  const headers = headersOf(config);
  app.addHook('onRequest', (request, reply, done) => {
    reply.headers(headers);
    reply.header('request-id', request.id);
    done();
  });
  app.addHook('onResponse', (request, reply, done) => {
    const isProbe = probes.has(request.routeOptions.url ?? '') && reply.statusCode < 400;
    // Refused requests have one line together (overload/overload_metrics.ts).
    const isQuiet = isProbe || request.isRefused === true;
    request.log[isQuiet ? 'debug' : 'info'](
      {
        method: request.method,
        path: loggedPath(request.url),
        route: request.routeOptions.url,
        status: reply.statusCode,
        duration_ms: Math.round(reply.elapsedTime * 10) / 10,
        remote: request.ip,
      },
      'request',
    );
    done();
  });
  closeUnreadBodies(app, bodyBytesMax);
  limitHeadFields(app);
  requireHostHeader(app);
  refuseEncodedPaths(app);
  limitUnreadResponses(app);
  app.setErrorHandler(handleError);
  app.setNotFoundHandler((request: FastifyRequest, reply) =>
    handleNotFound(app, request, reply, problemPage),
  );
  // Respond 404 and 405 before the body is parsed: Fastify would reject a QUERY without Content-Type first.
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (request.is404) handleNotFound(app, request, reply, problemPage);
    else done(null, payload);
  });
  app.server.on('connect', rejectConnect);
  return app;
}

/** Headers of all responses. */
export function headersOf({ baseUrl }: Config): Record<string, string> {
  return {
    'nuncio-version': version,
    'x-content-type-options': 'nosniff',
    ...(isPublicHttps(baseUrl) ? { 'strict-transport-security': `max-age=${transportSecuritySeconds}` } : {}),
  };
}

/** On loopback, other servers use other ports of the same host with plain http, so HSTS would break them. */
function isPublicHttps(baseUrl: string): boolean {
  const { protocol, hostname } = new URL(baseUrl);
  return protocol === 'https:' && !isLoopbackHost(hostname);
}

/** Closes the server. Requests in flight have `drainTimeoutMs` to finish. */
export async function closeApplication(app: FastifyInstance): Promise<void> {
  const timer = setTimeout(() => app.server.closeAllConnections(), drainTimeoutMs);
  try {
    await app.close();
  } finally {
    clearTimeout(timer);
  }
}
