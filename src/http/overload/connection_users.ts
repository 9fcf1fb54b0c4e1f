/** Tells the database for whom a request works, so that requests of one caller share connections (database/fair_pool.ts). */

import { Socket } from 'node:net';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { asUser, type ConnectionUser } from '../../database/connection_user.ts';
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

  constructor(request: FastifyRequest, reply: FastifyReply, callerOf: (request: FastifyRequest) => Caller) {
    this.#request = request;
    this.#reply = reply;
    this.#callerOf = callerOf;
  }

  get owner(): string {
    return this.#identify().owner;
  }

  get group(): string | null {
    return this.#identify().group;
  }

  /** The guard has verified the token, so the account is known even if the token is new. */
  verified(): void {
    this.#caller = undefined;
  }

  #identify(): Caller {
    this.#caller ??= this.#callerOf(this.#request);
    return this.#caller;
  }

  get hasEnded(): boolean {
    return this.#reply.raw.writableEnded || this.#reply.raw.destroyed;
  }
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
