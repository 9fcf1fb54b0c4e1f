/** What the routes of the administration need, and who may use them. */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { type Actor, requireAdmin } from '../apps/actor.ts';
import type { ClientCache } from '../clients/client_cache.ts';
import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import type { Catalogue } from '../events/catalogue.ts';
import type { StoredEvent } from '../events/store.ts';
import type { Guard } from '../grants/principal.ts';
import { adminScope } from '../grants/scopes.ts';

export interface AdminOptions {
  api: FastifyInstance;
  db: Database;
  guard: Guard;
  clients: ClientCache;
  /** Kinds, and what is to be called with new events after a commit. */
  events: { catalogue: Catalogue; onPublished: (events: StoredEvent[]) => void };
  config: Config;
  /** What the operator declared, by section: shown as it is in force. */
  platform: Readonly<Record<string, unknown>>;
}

export interface IdRoute {
  Params: { id: string };
}

/** Lets administrators in. */
export function adminGuard({ db, guard }: Pick<AdminOptions, 'db' | 'guard'>) {
  return async (request: FastifyRequest): Promise<Actor> =>
    requireAdmin(db, await guard(request, adminScope));
}
