/** Tells the database for whom a request works, so that requests of one caller share connections (database/fair_pool.ts). */

import { Socket } from 'node:net';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { asUser, type ConnectionUser, currentUser, type Purpose } from '../../database/connection_user.ts';
import type { Place } from './admission.ts';
import type { Caller } from './caller.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Null for requests of this process to itself, which belong to another one. */
    connectionUser: RequestUser | null;
  }
}

class RequestUser implements ConnectionUser {
  readonly #request: FastifyRequest;
  readonly #reply: FastifyReply;
  readonly #callerOf: (request: FastifyRequest) => Caller;
  #caller: Caller | undefined;
  #gone: AbortController | undefined;

  constructor(request: FastifyRequest, reply: FastifyReply, callerOf: (request: FastifyRequest) => Caller) {
    this.#request = request;
    this.#reply = reply;
    this.#callerOf = callerOf;
  }

  get owner(): string {
    return this.#known.owner;
  }

  get part(): string | null {
    return this.#known.part;
  }

  get group(): string | null {
    return this.#known.group;
  }

  get #known(): Caller {
    this.#caller ??= this.#callerOf(this.#request);
    return this.#caller;
  }

  get purpose(): Purpose {
    const { method, routeOptions } = this.#request;
    if (routeOptions.config.precedence === 'first')
      return method === 'PATCH' || method === 'DELETE' ? 'right' : 'first';
    return method === 'GET' || method === 'HEAD' ? 'read' : 'change';
  }

  /** The guard has verified the token, so the account is known even if the token is new. */
  verified(): void {
    this.#caller = undefined;
  }

  get place(): Place | null {
    return this.#request.place;
  }

  /** Aborts when the client has gone. */
  get signal(): AbortSignal {
    if (this.#gone === undefined) {
      const gone = new AbortController();
      const { raw } = this.#reply;
      raw.on('close', () => gone.abort());
      if (raw.destroyed) gone.abort();
      this.#gone = gone;
    }
    return this.#gone.signal;
  }

  /** A client that disconnects does not end the work of its request: until its handler returns, the caller still has its share only. */
  get hasEnded(): boolean {
    const { raw } = this.#reply;
    return raw.writableEnded || (raw.destroyed && (this.place === null || this.place.state === 'left'));
  }
}

/** The place of the request that this code works for; null for work of the server. */
export function currentPlace(): Place | null {
  return currentRequest()?.place ?? null;
}

/** Aborts when the client of the request has gone that this code works for; undefined for work of the server. */
export function currentSignal(): AbortSignal | undefined {
  return currentRequest()?.signal;
}

function currentRequest(): RequestUser | undefined {
  const user = currentUser();
  const own = user?.turn?.user ?? user;
  return own instanceof RequestUser ? own : undefined;
}

/** Call it after the hook that admits requests. @param callerOf called only when many connections are in use */
export function nameConnectionUsers(
  app: FastifyInstance,
  callerOf: (request: FastifyRequest) => Caller,
): void {
  app.decorateRequest('connectionUser', null);
  app.addHook('onRequest', (request, reply, done) => {
    if (!(request.raw.socket instanceof Socket)) return done();
    request.connectionUser = new RequestUser(request, reply, callerOf);
    asUser(request.connectionUser, done);
  });
  app.addHook('preValidation', ({ connectionUser }, _reply, done) => {
    if (connectionUser === null) return done();
    connectionUser.verified();
    // The events of a body do not continue the first hook.
    asUser(connectionUser, done);
  });
}
