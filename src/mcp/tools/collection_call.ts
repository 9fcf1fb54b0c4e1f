/** Calls an operation of a collection for a tool: arguments become the request that a client of the API would send. */

import { cutLinks } from '../../collections/representation.ts';
import type { ResourceOperation, ResourceRequest } from '../../collections/resource_operations.ts';
import { mergePatchType } from '../../http/api.ts';
import { type CollectionTool, ifMatchArgument, keyArgument, tagMember } from './collection_tools.ts';
import { JsonText, type Tool } from './tool.ts';

/** @param operation that the tool describes */
export function bindTool(description: CollectionTool, { handle, method, url }: ResourceOperation): Tool {
  const { type, kind, ...tool } = description;
  return {
    ...tool,
    async run({ arguments: given, principal }) {
      const { id = '', [ifMatchArgument]: ifMatch, [keyArgument]: key, ...rest } = given;
      const ownId = type.parent === null ? String(id) : '';
      const parentId = type.parent === null ? undefined : String(id);
      const request: ResourceRequest = {
        method,
        url: url.replace(':parent', String(parentId)).replace(':id', ownId),
        headers: {
          'content-type': kind === 'patch' ? mergePatchType : 'application/json',
          ...(ifMatch === undefined ? {} : { 'if-match': String(ifMatch) }),
          ...(key === undefined ? {} : { 'idempotency-key': String(key) }),
        },
        query: kind === 'list' ? queryOf(rest) : {},
        body: kind === 'list' || kind === 'read' || kind === 'delete' ? undefined : rest,
      };
      const { body, headers } = await handle({ request, principal, id: ownId, parentId, withoutLinks: true });
      if (kind === 'delete') return { id: ownId, deleted: true };
      if (kind === 'list') return new JsonText(body as string);
      // Links are for clients of the API: tokens of an agent do not open them.
      const members = cutLinks(body as string).slice(0, -1);
      return new JsonText(`${members},"${tagMember}":${JSON.stringify(headers.etag)}}`);
    },
  };
}

/** Query parameters are text. */
function queryOf(parameters: Record<string, unknown>): Record<string, string> {
  return Object.fromEntries(Object.entries(parameters).map(([name, value]) => [name, String(value)]));
}
