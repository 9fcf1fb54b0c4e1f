/**
 * Who may call an operation of the API. Each operation declares one admission, which checks the caller of every request and
 * gives the handler what it knows of them.
 */

import type { FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { type Actor, requireAdmin, resolveActor } from '../grants/actor.ts';
import type { Guard, Principal } from '../grants/principal.ts';
import { adminScope } from '../grants/scopes.ts';
import type { AdmissionRule } from '../http/operation.ts';
import { Problem } from '../http/problem.ts';

export interface AdmissionParts {
  db: Database;
  guard: Guard;
}

export interface Admission<Caller> extends AdmissionRule {
  /** @throws Problem 401 or 403 */
  admit(parts: AdmissionParts, request: FastifyRequest): Promise<Caller>;
}

/** Admits everyone. */
export const anyone: Admission<null> = { audience: 'anyone', scopes: [], admit: async () => null };

/** Admits every access token with the scopes. */
export function token(...scopes: string[]): Admission<Principal> {
  return { audience: 'token', scopes, admit: ({ guard }, request) => guard(request, ...scopes) };
}

/** Admits access tokens with the scopes. The handler looks up the actor's role in the app. */
export function member(...scopes: string[]): Admission<Actor> {
  return {
    audience: 'member',
    scopes,
    admit: async ({ db, guard }, request) => resolveActor(db, await guard(request, ...scopes)),
  };
}

/** Admits administrators, and clients of the operator that act for themselves with the scope `admin`. */
export const administrator: Admission<Actor> = {
  audience: 'administrator',
  scopes: [adminScope],
  admit: async ({ db, guard }, request) => requireAdmin(db, await guard(request, adminScope)),
};

/** Admits access tokens with the scope that speak for a client and not for a user. Only the operator grants such scopes. */
export function machineToken(scope: string): Admission<Principal> {
  return {
    audience: 'machine',
    scopes: [scope],
    admit: async ({ guard }, request) => {
      const principal = await guard(request, scope);
      if (principal.accountId === null) return principal;
      throw notAMachine('This request requires the token of a machine client, not of a user.');
    },
  };
}

/**
 * Admits clients of the operator that act for themselves and whose registration has the scope now; it may have been removed
 * since the token was issued. Users, the console and self-registered apps cannot get these scopes, and their tokens are
 * rejected in any case.
 */
export function machine(scope: string): Admission<Actor> {
  const { admit, ...rule } = machineToken(scope);
  return {
    ...rule,
    admit: async (parts, request) => {
      const { clientId } = await admit(parts, request);
      const { rows } = await sql`
        select from clients
        where id = ${clientId} and origin = 'operator' and scopes @> array[${scope}]::text[] and not is_stopped`.execute(
        parts.db,
      );
      if (rows.length > 0) return { accountId: null, clientId, isAdmin: false };
      throw notAMachine('The operator has not registered this client for the scope.');
    },
  };
}

function notAMachine(detail: string): Problem {
  return new Problem(403, detail, { code: 'not-a-machine' });
}
