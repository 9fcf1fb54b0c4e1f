/**
 * Who may use the accounts API: machine clients that the operator named, with the scope, by client credentials. Users,
 * the console and apps that registered themselves never get these scopes; should a token say otherwise, it opens nothing.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import type { Actor } from '../apps/actor.ts';
import type { Sealer } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import type { Guard } from '../grants/principal.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { Problem } from '../http/problem.ts';

export interface AccountApiOptions {
  api: FastifyInstance;
  db: Database;
  guard: Guard;
  scopes: ScopeCatalogue;
  /** For responses that are kept for an idempotency key. */
  sealer: Sealer;
  baseUrl: string;
  /** Origins that users may be sent back to, as the operator declared them. */
  returnOrigins: ReadonlySet<string>;
}

/** Lets machine clients in that have the scope now: a token may be older than what it says. */
export function machineGuard({ db, guard }: Pick<AccountApiOptions, 'db' | 'guard'>, scope: string) {
  return async (request: FastifyRequest): Promise<Actor> => {
    const { accountId, clientId } = await guard(request, scope);
    if (accountId !== null) {
      throw new Problem(403, 'This is for machine clients: the token is a user’s.', {
        code: 'not-a-machine',
      });
    }
    const { rows } = await sql`
      select from clients
      where id = ${clientId} and origin = 'operator' and scopes @> array[${scope}]::text[] and not is_stopped`.execute(
      db,
    );
    if (rows.length > 0) return { accountId, clientId, isAdmin: false };
    throw new Problem(403, 'The operator has not named this client for that (any more).', {
      code: 'not-a-machine',
    });
  };
}

/** Whose idempotency keys they are. */
export function idempotencyNamespace({ clientId }: Actor): string {
  return `accounts - ${clientId}`;
}
