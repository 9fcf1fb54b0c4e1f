/** Dependencies of the administration routes, and their access check. */

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
  /** The event kinds, and a callback for new events, to call after the commit. */
  events: { catalogue: Catalogue; onPublished: (events: StoredEvent[]) => void };
  config: Config;
  /** The effective configuration of the platform, by section. */
  platform: Readonly<Record<string, unknown>>;
}

export interface IdRoute {
  Params: { id: string };
}

/** Admits administrators. */
export function adminGuard({ db, guard }: Pick<AdminOptions, 'db' | 'guard'>) {
  return async (request: FastifyRequest): Promise<Actor> =>
    requireAdmin(db, await guard(request, adminScope));
}
