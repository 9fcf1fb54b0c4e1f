/**
 * Keeps a node responsive under more load than it can serve. Each request needs a place (admission.ts) before its handlers run: before
 * its token is checked and its body is read. A place is held while the server works for the request, not while the server waits for
 * the client's body, for an event or for another server, and not while the client reads.
 *
 *   before Fastify: its connection's turn (read_turns.ts) → its turn (arrivals.ts) → refused if nothing of the class, or of the caller, may wait any more
 *   onRequest: class, budget of bodies → place → guard → [paused: body arrives] → handler → left
 */

import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import { Socket } from 'node:net';
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Registry } from 'prom-client';
import { newId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { undivided } from '../../shared/owner_turns.ts';
import type { ProblemPage } from '../errors.ts';
import { addressMatcher, forwardedAddress } from '../network.ts';
import { Admission, Place } from './admission.ts';
import { Arrivals } from './arrivals.ts';
import { BodyBudget } from './body_budget.ts';
import { type Caller, callerOfAddress, rememberCallers } from './caller.ts';
import { nameConnectionUsers } from './connection_users.ts';
import { LoadMonitor } from './load_monitor.ts';
import { createOverloadMetrics, RefusalLog } from './overload_metrics.ts';
import { Paced } from './paced.ts';
import { classifyRoutes, type Precedence } from './precedence.ts';
import type { Reason } from './queue.ts';
import { readInTurns } from './read_turns.ts';
import { needsFastify, refuse, refuseEarly } from './refusal.ts';
import { resumePlace } from './request_place.ts';

/** Bodies of all requests on a node. */
const bodyBytesMax = 134_217_728;
/** Maximum size in bytes of a body with a known length for which none is reserved: the size of a head. */
const smallBodyBytes = 16_384;

export interface OverloadOptions {
  db: Database;
  registry: Registry;
  logger: FastifyBaseLogger;
  /** The most requests in progress; 0 for no limit. */
  requestsMax: number;
  /** Addresses or CIDR ranges of reverse proxies. */
  trustProxy: readonly string[];
  /** The caller of a token that was verified before; undefined for others. */
  identify: (token: string) => Caller | undefined;
  /** Headers of all responses, as names and values in turn. */
  headers: readonly string[];
  /** Tells browsers. */
  page: ProblemPage;
}

/** Call it before routes are registered. @returns stops the timers */
export function limitLoad(app: FastifyInstance, options: OverloadOptions): () => void {
  const { db, registry, logger, requestsMax, trustProxy, page, headers } = options;
  app.decorateRequest('place', null);
  app.decorateRequest('isRefused', false);
  app.decorateRequest('bodyReservation', null);
  app.decorateRequest('callerNow', null);
  if (requestsMax === 0) return () => {};
  const admission = new Admission(requestsMax);
  const monitor = new LoadMonitor(admission, db);
  const bodies = new BodyBudget(bodyBytesMax);
  const count = createOverloadMetrics(registry, admission, bodies);
  const log = new RefusalLog(logger, admission, monitor);
  const identify = rememberCallers(options.identify);
  const callerOf = (request: FastifyRequest) => identify(request.raw) ?? callerOfAddress(request.ip);

  function note(precedence: Precedence, reason: string): void {
    count(precedence, reason);
    log.add(precedence, reason);
  }

  function turnAway(request: FastifyRequest, reply: FastifyReply, reason: string): void {
    request.isRefused = true;
    note(request.place?.precedence ?? 'ordinary', reason);
    refuse(request, reply, page);
  }

  const classOf = classifyRoutes(app);
  const refusals = new Paced();
  const isProxy = addressMatcher(trustProxy);
  const addressOf = forwardedAddress(isProxy);
  readInTurns(app.server as Server, ({ remoteAddress = '', remotePort }) =>
    isProxy(remoteAddress) ? undivided(`${remoteAddress}:${remotePort}`) : siteOf(remoteAddress),
  );
  const arrivals = new Arrivals(
    (request) => identify(request) ?? siteOf(addressOf(request)),
    ({ remoteAddress = '' }) => isProxy(remoteAddress),
  );
  filterRequests(app, arrivals, (request, response) => {
    const { method = '', url = '' } = request;
    if (!admission.isCrowded || needsFastify(request)) return false;
    const precedence = classOf(method, url.split('?', 1)[0] as string);
    if (precedence === 'exempt') return false;
    const reason = refusalOf(admission, precedence, identify(request), () => addressOf(request));
    if (reason === null) return false;
    note(precedence, reason);
    refusals.add(() => {
      if (!response.destroyed) refuseEarly(request, response, newId(), headers);
    });
    return true;
  });
  app.addHook('onRequest', (request, reply, done) => {
    const precedence = request.routeOptions.config.precedence ?? 'ordinary';
    // Requests of this process to itself belong to one that has a place.
    if (precedence === 'exempt' || !(request.raw.socket instanceof Socket)) return done();
    const callerNow = callOf(callerOf, request);
    const place = new Place(admission, precedence, callerNow);
    request.place = place;
    request.callerNow = callerNow;
    monitor.start();
    if (!reserveBody(bodies, request, reply, place)) return turnAway(request, reply, 'bytes');
    const admit = () => {
      if (request.raw.socket.destroyed) place.leave();
      else done();
    };
    if (place.enter(admit, (reason) => turnAway(request, reply, reason))) done();
  });
  app.addHook('preParsing', (request, _reply, payload, done) => {
    if (!request.raw.complete && hasBody(request)) request.place?.pause();
    done(null, payload);
  });
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.place?.resumeNow() ?? true) return done();
    resumePlace(request).then(() => done(), done);
  });
  nameConnectionUsers(app, (request) => identify(request.raw) ?? siteOf(request.ip));
  app.addHook('onSend', (request, _reply, _payload, done) => {
    request.place?.leave();
    if (request.raw.complete) {
      // Whoever does not read the response would keep it, and its memory from others.
      request.body = undefined;
      request.bodyReservation?.release();
    }
    done();
  });
  app.addHook('onResponse', (request, _reply, done) => {
    request.place?.leave();
    done();
  });
  return () => {
    monitor.stop();
    admission.stop();
    log.stop();
  };
}

/** The site of an address, or its network if it has none. */
function siteOf(address: string): Caller {
  const { owner, group } = callerOfAddress(address);
  return undivided(group ?? owner);
}

/** A stream keeps this function for as long as it is open. It is made here so that it keeps nothing else of the hook. */
function callOf(callerOf: (request: FastifyRequest) => Caller, request: FastifyRequest): () => Caller {
  return () => callerOf(request);
}

/** An address, which is not asked for if nobody is refused, may also wait in place of others. */
function refusalOf(
  admission: Admission,
  precedence: Precedence,
  known: Caller | undefined,
  addressOf: () => string,
): Reason | null {
  const reason = admission.refusalOf(precedence, known);
  if (reason === null || known !== undefined) return reason;
  return admission.refusalOf(precedence, callerOfAddress(addressOf()));
}

/** Calls the filter before Fastify, for which even a refusal costs several times as much. It returns whether it has responded. */
function filterRequests(
  { server }: FastifyInstance,
  arrivals: Arrivals,
  filter: (request: IncomingMessage, response: ServerResponse) => boolean,
): void {
  const [handle] = server.listeners('request') as RequestListener[];
  if (handle === undefined) throw new Error('the server has no listener for requests');
  server.removeListener('request', handle);
  const arrive: RequestListener = (request, response) => {
    arrivals.add(request, response, () => {
      // A server that stops closes its connections with its responses, which Fastify does.
      if (!server.listening || !filter(request, response)) handle(request, response);
    });
  };
  server.on('request', arrive);
  // Node.js would respond 417 itself, to thousands of requests in one turn. RFC 9110 section 10.1.1 allows to ignore an expectation.
  server.on('checkExpectation', arrive);
}

function hasBody({ headers }: FastifyRequest): boolean {
  const { 'content-length': length, 'transfer-encoding': encoding } = headers;
  return encoding !== undefined || (length !== undefined && length !== '0');
}

/**
 * Reserves memory for the body until the response is on its way, and the work has ended, which continues if the client disconnects. A small body
 * takes no more than the head of its request, for which nothing is reserved: whoever fills the memory with large bodies refuses no small ones.
 */
function reserveBody(
  bodies: BodyBudget,
  request: FastifyRequest,
  reply: FastifyReply,
  place: Place,
): boolean {
  if (!hasBody(request)) return true;
  const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
  // Fastify refuses what is longer.
  const bytesMax = request.routeOptions.bodyLimit ?? 0;
  const bytes = encoding === undefined ? Math.min(Number(length), bytesMax) : bytesMax;
  if (encoding === undefined && bytes <= smallBodyBytes) return true;
  const reservation = bodies.reserve(bytes, () => place.caller);
  if (reservation === null) return false;
  request.bodyReservation = reservation;
  reply.raw.once('close', () => place.whenLeft(() => bodies.release(reservation)));
  return true;
}
