/** What the administration routes share. */

import type { TSchema } from 'typebox';
import type { ClientCache } from '../../clients/client_cache.ts';
import type { Config } from '../../config/config.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { StoredEvent } from '../../events/store.ts';
import { ok, page, pageParameters } from '../../http/describe.ts';
import type { BodyDescription, Parameter } from '../../http/operation.ts';
import { administrator } from '../admission.ts';
import { type RouteParts, route } from '../route.ts';

export interface AdminOptions extends RouteParts {
  clients: ClientCache;
  /** The event kinds, and a callback for new events, to call after the commit. */
  events: { catalogue: Catalogue; onPublished: (events: StoredEvent[]) => void };
  config: Config;
  /** This node's metrics in Prometheus' text format. */
  metrics: () => Promise<string>;
  /** The effective configuration of the platform, by section. */
  platform: Readonly<Record<string, unknown>>;
}

/** What every route of the room declares. */
export const administration = { tag: 'administration', admission: administrator };

/** Declares a list. @param item a named schema */
export function listRoute<Path extends string>(
  id: string,
  path: Path,
  summary: string,
  item: TSchema,
  parameters: readonly Parameter[] = [],
  description = 'One page scans at most 1,000 rows. With filters it may have fewer items than `limit`, or none, and still have `next`.',
) {
  return route({
    ...administration,
    id,
    method: 'get',
    path,
    summary,
    description,
    parameters: [...pageParameters, ...parameters],
    responses: page('A page of results.', item),
  });
}

/** Declares a route that reads one resource or state. @param schema a named schema */
export function readRoute<Path extends string>(
  id: string,
  path: Path,
  summary: string,
  schema: TSchema,
  parameters: readonly Parameter[] = [],
) {
  return route({
    ...administration,
    id,
    method: 'get',
    path,
    summary,
    parameters,
    responses: ok('The current state.', schema),
  });
}

/** Declares an action on a resource, which returns the resource. @param schema a named schema */
export function actRoute<Path extends string, Body extends TSchema>(
  id: string,
  path: Path,
  summary: string,
  schema: TSchema,
  parameter: Parameter,
  body: BodyDescription<Body>,
) {
  return route({
    ...administration,
    id,
    method: 'post',
    path,
    summary,
    parameters: [parameter],
    body,
    responses: ok('The new state.', schema),
    problems: [409],
  });
}
