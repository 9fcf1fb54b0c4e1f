/**
 * The HTTP application: a Fastify instance with what every answer of this server has in common: a request id,
 * the server's version, problem details for every error, honest 404 and 405, one wide log line for each request.
 */

import type { ServerOptions } from 'node:https';
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
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
import { closeUnreadBodies } from './body_limit.ts';
import { answerError, answerNotFound, answerUnreadable, type ProblemPage, refuseConnect } from './errors.ts';
import { parseJson } from './json.ts';

/** Fastify types the handler of its own errors (a URL that cannot be read, say) more narrowly than any other. */
type FrameworkErrors = NonNullable<FastifyServerOptions['frameworkErrors']>;

/** The largest body taken, in bytes. */
export const bodyBytesMax = 1_048_576;

/** Milliseconds in which a request must have come as a whole: who sends a byte a minute is not waited for. */
const requestTimeoutMs = 60_000;

/** Milliseconds between two looks for requests that are past that. */
const timeoutCheckMs = 5_000;

/**
 * Milliseconds that requests under way have to end once the server stops. Less than a stop may take as a whole: a single
 * request that never comes would otherwise make every stop an unclean one.
 */
const closeMs = 10_000;

/**
 * Seconds for which browsers use https alone (RFC 6797): a year. Without `includeSubDomains`: what else is below the
 * host of the base URL is not this server's to decide.
 */
const transportSecuritySeconds = 31_536_000;

/** Asked every few seconds by what watches the server: in the log they would be all that one sees. */
const probes: ReadonlySet<string> = new Set(['/livez', '/readyz']);

/**
 * @param logger a pino logger; every line of a request carries its id
 * @param tls what the server's own TLS needs; null where it speaks plain HTTP
 * @param problemPage how a browser is told that there is nothing; null where it gets what a program gets
 */
export function createApplication(
  config: Config,
  logger: FastifyBaseLogger,
  tls: ServerOptions | null = null,
  problemPage: ProblemPage | null = null,
): FastifyInstance {
  const app = Fastify({
    ...(tls === null
      ? { http: { connectionsCheckingInterval: timeoutCheckMs } }
      : { https: { ...tls, connectionsCheckingInterval: timeoutCheckMs } }),
    loggerInstance: logger,
    // One line of our own for each request instead of the framework's two.
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    // Ids are made here: what a client sends could be used to confuse the log.
    requestIdHeader: false,
    genReqId: () => newId(),
    bodyLimit: bodyBytesMax,
    // The framework's own is none, which also keeps a server that is asked to stop waiting for ever.
    requestTimeout: requestTimeoutMs,
    // RFC 9112 section 3.2.2: the absolute form is taken; whose name is in it is of no account, as with Host.
    rewriteUrl: ({ url = '/' }) =>
      url.replace(/^https?:\/\/[^/?#]*(?=(.?))/i, (_origin, next) => (next === '/' ? '' : '/')),
    trustProxy: config.trustProxy.length > 0 ? [...config.trustProxy] : false,
    routerOptions: { maxParamLength: 2_048, ignoreTrailingSlash: false },
    clientErrorHandler: answerUnreadable,
    frameworkErrors: answerError as unknown as FrameworkErrors,
    // A request that was taken is finished before the server ends; new ones get 503.
    return503OnClosing: true,
    forceCloseConnections: 'idle',
  }).withTypeProvider<TypeBoxTypeProvider>();

  app.setValidatorCompiler(({ schema, httpPart }) => {
    const ajv = httpPart === 'querystring' || httpPart === 'params' ? textAjv : bodyAjv;
    return ajv.compile(schema);
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer' },
    async (_request: FastifyRequest, body: Buffer) => parseJson(body),
  );
  const securityHeaders = {
    'x-content-type-options': 'nosniff',
    ...(isPublicHttps(config.baseUrl)
      ? { 'strict-transport-security': `max-age=${transportSecuritySeconds}` }
      : {}),
  };
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('nuncio-version', version);
    reply.header('request-id', request.id);
    reply.headers(securityHeaders);
    done();
  });
  app.addHook('onResponse', (request, reply, done) => {
    const isProbe = probes.has(request.routeOptions.url ?? '') && reply.statusCode < 400;
    request.log[isProbe ? 'debug' : 'info'](
      {
        method: request.method,
        // Without the query: it may carry codes and tokens that people put where they do not belong.
        path: request.url.split('?', 1)[0],
        route: request.routeOptions.url,
        status: reply.statusCode,
        duration_ms: Math.round(reply.elapsedTime * 10) / 10,
        remote: request.ip,
      },
      'request',
    );
    done();
  });
  // Its type provider does not matter there.
  closeUnreadBodies(app as unknown as FastifyInstance, bodyBytesMax);
  app.setErrorHandler(answerError);
  app.setNotFoundHandler((request: FastifyRequest, reply) =>
    answerNotFound(app, request, reply, problemPage),
  );
  // Before the body: 404 and 405 do not depend on it, and the framework refuses a QUERY without Content-Type first.
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (request.is404) answerNotFound(app, request, reply, problemPage);
    else done(null, payload);
  });
  app.server.on('connect', refuseConnect);
  return app as unknown as FastifyInstance;
}

/** On loopback other servers use other ports of the same host, and plain http. */
function isPublicHttps(baseUrl: string): boolean {
  const { protocol, hostname } = new URL(baseUrl);
  return protocol === 'https:' && !isLoopbackHost(hostname);
}

/** Finishes what was begun, as far as that does not take too long. */
export async function closeApplication(app: FastifyInstance): Promise<void> {
  const timer = setTimeout(() => app.server.closeAllConnections(), closeMs);
  try {
    await app.close();
  } finally {
    clearTimeout(timer);
  }
}

/** A URL has only text: numbers and switches in it are read from text. */
const textAjv = withFormats(
  new Ajv({ allErrors: false, coerceTypes: 'array', useDefaults: true, strict: false }),
);
/** A body has types of its own: nothing is bent to fit. */
const bodyAjv = withFormats(
  new Ajv({ allErrors: true, coerceTypes: false, useDefaults: true, strict: false }),
);

function withFormats(ajv: Ajv): Ajv {
  // The package is CommonJS: its function is both the module and its `default`.
  addFormats.default(ajv);
  return ajv;
}
