/**
 * Access to the accounts API: machine clients of the operator, with the scope and the client credentials grant. Users, the
 * console and self-registered apps cannot get these scopes, and this guard rejects their tokens in any case.
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
  /** Encrypts responses that are stored for an idempotency key. */
  sealer: Sealer;
  baseUrl: string;
  /** Origins to which users may return, from the operator's configuration. */
  returnOrigins: ReadonlySet<string>;
  /** Whether the application may sign in administrators. */
  signsInAdministrators: boolean;
}

/** Admits machine clients whose registration has the scope now; it may have been removed since the token was issued. */
export function machineGuard({ db, guard }: Pick<AccountApiOptions, 'db' | 'guard'>, scope: string) {
  return async (request: FastifyRequest): Promise<Actor> => {
    const { accountId, clientId } = await guard(request, scope);
    if (accountId !== null) {
      throw new Problem(403, 'This request requires the token of a machine client, not of a user.', {
        code: 'not-a-machine',
      });
    }
    const { rows } = await sql`
      select from clients
      where id = ${clientId} and origin = 'operator' and scopes @> array[${scope}]::text[] and not is_stopped`.execute(
      db,
    );
    if (rows.length > 0) return { accountId, clientId, isAdmin: false };
    throw new Problem(403, 'The operator has not registered this client for the scope.', {
      code: 'not-a-machine',
    });
  };
}

/** Namespace of the client's idempotency keys. */
export function idempotencyNamespace({ clientId }: Actor): string {
  return `accounts - ${clientId}`;
}
