/** The routes of collections: each serves an operation (resource_operations.ts) over HTTP. */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Guard, Principal } from '../grants/principal.ts';
import { sendResponse } from '../http/json_response.ts';
import type { Operation as Described } from '../http/operation.ts';
import { describeCollections } from './operations.ts';
import { rejectQuery } from './query.ts';
import type { ResourceOperation } from './resource_operations.ts';
import type { ResourceType } from './resource_type.ts';

/** @param operations of the collections */
export function registerCollections(
  api: FastifyInstance,
  guard: Guard,
  collections: readonly ResourceType[],
  operations: readonly ResourceOperation[],
): void {
  const described = new Map(
    describeCollections(collections).operations.map((operation) => [
      `${operation.method.toUpperCase()} ${operation.path}`,
      operation,
    ]),
  );
  for (const { method, url, scope, handle } of operations) {
    const principals = new WeakMap<FastifyRequest, Principal>();
    api.route({
      method,
      url,
      config: { operation: described.get(`${method} ${url.replaceAll(/:(\w+)/g, '{$1}')}`) as Described },
      // Check the token before reading the body.
      onRequest: async (request) => {
        principals.set(request, await guard(request, scope));
      },
      handler: async (request, reply) => {
        // Check again, because the grant may have been withdrawn while the body arrived.
        const principal =
          method === 'GET' ? (principals.get(request) as Principal) : await guard(request, scope);
        if (method !== 'GET') rejectQuery(request.query);
        const { id = '', parent: parentId } = request.params as { id?: string; parent?: string };
        return sendResponse(reply, await handle({ request, principal, id, parentId }));
      },
    });
  }
}
