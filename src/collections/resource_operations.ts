/**
 * The operations of a collection: what each does with a request of a principal whose token has its scope. Routes (routes.ts)
 * and tools of agents (src/mcp) call the same operations, so that both validate, limit and decide alike. Handlers translate
 * between a request and the files that implement the operations (list.ts, create.ts, change.ts, patch.ts).
 */

import { isId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { StoredEvent } from '../events/store.ts';
import type { Principal } from '../grants/principal.ts';
import { jsonPatchType } from '../http/api.ts';
import { type ConditionHeaders, isNotModified } from '../http/conditional.ts';
import { readIdempotencyKey, runIdempotent } from '../http/idempotency.ts';
import type { JsonResponse } from '../http/json_response.ts';
import { mediaType } from '../http/media_types.ts';
import { callerOfToken } from '../http/overload/caller.ts';
import { Problem } from '../http/problem.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import { activeTraceparent, inSpan } from '../http/tracing.ts';
import { RecentTime } from '../shared/recent_time.ts';
import { cellsOf } from './cells.ts';
import { deleteResource, hasManyChildren, lockOwnResource, performAction, updateResource } from './change.ts';
import { requireUser } from './create.ts';
import { batchCreations } from './creations.ts';
import { embed } from './expansions.ts';
import { listResources, type Page } from './list.ts';
import { ListTurns } from './list_turns.ts';
import { mergedValues, patchedValues, replacedValues } from './patch.ts';
import { type ListQuery, readListQuery, readResourceQuery } from './query.ts';
import { createReader } from './reader.ts';
import {
  pathOf,
  resourceWriter,
  validatorHeaders,
  validatorsOf,
  writeItems,
  writeResource,
} from './representation.ts';
import { findVisible, notFound, type OwnedRow, type Row } from './resource.ts';
import { type ResourceAction, type ResourceType, withChildren } from './resource_type.ts';
import { actionSchema, createSchema, replaceSchema } from './schemas.ts';
import { isIndexed } from './table.ts';
import { bodyCheck } from './validation.ts';

export interface OperationsContext {
  db: Database;
  /** Limits what accounts add to resources of others. */
  additions: RateLimiter;
  /** Called after a commit that may have added events. */
  wake: () => void;
  /** Called after a commit, with the added events. */
  onPublished: (events: StoredEvent[]) => void;
}

/** Approximate size of a creation in memory, without its body. */
const creationBytes = 1_024;

/** The parts of a request that operations read. */
export interface ResourceRequest {
  method: string;
  /** Path and query. */
  url: string;
  headers: ConditionHeaders & {
    'content-type'?: string | undefined;
    'content-length'?: string | undefined;
    'idempotency-key'?: string | string[] | undefined;
  };
  query: unknown;
  body: unknown;
}

/** A request of a principal that has the operation's scope. */
export interface Call {
  request: ResourceRequest;
  principal: Principal;
  /** Path parameters. */
  id: string;
  parentId: string | undefined;
  /** Of a list: a page as `{"items":[…],"next":…}`, with the cursor of the next page or null, and without any links. */
  withoutLinks?: boolean;
}

type Handler = (call: Call) => Promise<JsonResponse>;

export interface ResourceOperation {
  kind: 'list' | 'read' | 'create' | 'replace' | 'patch' | 'delete' | 'action';
  type: ResourceType;
  /** Of kind `action`. */
  action: ResourceAction | null;
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  /** Path with the parameters `:id` and, in a sub-collection, `:parent`. */
  url: string;
  scope: string;
  /** @throws Problem */
  handle: Handler;
}

/**
 * Deletions at once on a node of resources with very many in their sub-collections. 400,000 take five seconds, and those of ten users took all
 * connections for changes.
 */
const deletionsAtOnce = 1;
/** Lists of callers that have read much, at once on a node. */
const largeAtOnce = 1;

/** Creates the operations of all collections. Their batches and turns are shared by all callers, so this is called once. */
export function createOperations(
  context: OperationsContext,
  collections: readonly ResourceType[],
): ResourceOperation[] {
  const turns = {
    lists: new ListTurns('lists'),
    large: new ListTurns('large lists', largeAtOnce),
    read: new RecentTime(),
    deletions: new ListTurns('deletions', deletionsAtOnce),
  };
  return collections.flatMap(withChildren).flatMap((type) => operationsOf(context, type, turns));
}

/**
 * Characters of lists and embedded lists that a caller has read lately (half of them count after ten seconds) above which its further ones take turns: to make a page
 * of JSON takes PostgreSQL's processor.
 */
const readLatelyMax = 2_097_152;

/** Turns of expensive operations. */
interface OperationTurns {
  /** Of those without an index. */
  lists: ListTurns;
  /** Of callers that have read much. */
  large: ListTurns;
  /** Characters of lists, of which callers have had some lately. */
  read: RecentTime;
  /** Of resources with very many in their sub-collections. */
  deletions: ListTurns;
}

function operationsOf(
  context: OperationsContext,
  type: ResourceType,
  turns: OperationTurns,
): ResourceOperation[] {
  const { readScope, writeScope } = type;
  const list = type.parent === null ? `/${type.name}` : `/${type.parent.name}/:parent/${type.name}`;
  const one = `${list}/:id`;
  const reading = { type, action: null, scope: readScope, method: 'GET' } as const;
  const writing = { type, action: null, scope: writeScope } as const;
  const operations: ResourceOperation[] = [
    { ...reading, kind: 'list', url: list, handle: listHandler(context, type, list, turns) },
    { ...reading, kind: 'read', url: one, handle: readHandler(context, type, turns) },
    { ...writing, kind: 'create', method: 'POST', url: list, handle: createHandler(context, type) },
  ];
  if (type.parent !== null) return operations;
  return [
    ...operations,
    { ...writing, kind: 'replace', method: 'PUT', url: one, handle: replaceHandler(context, type) },
    { ...writing, kind: 'patch', method: 'PATCH', url: one, handle: patchHandler(context, type) },
    {
      ...writing,
      kind: 'delete',
      method: 'DELETE',
      url: one,
      handle: deleteHandler(context, type, turns.deletions),
    },
    ...type.actions.map(
      (action): ResourceOperation => ({
        ...writing,
        kind: 'action',
        action,
        method: 'POST',
        url: `${one}/${action.name}`,
        handle: actionHandler(context, type, action),
      }),
    ),
  ];
}

function listHandler(
  context: OperationsContext,
  type: ResourceType,
  path: string,
  turns: OperationTurns,
): Handler {
  const show = listShower(context, type, path);
  return async (call) => {
    const { request, principal, parentId } = call;
    const query = readListQuery(type, request.query);
    const { owner } = callerOfToken(principal);
    const read = async () =>
      show(call, query, await listResources(context.db, type, principal, query, parentId));
    let response: JsonResponse;
    if (!isIndexed(type, query, principal.accountId)) response = await turns.lists.run(principal, read);
    else if (turns.read.of(owner) > readLatelyMax) response = await turns.large.run(principal, read);
    else response = await read();
    turns.read.add(owner, response.body?.length ?? 0);
    return response;
  };
}

function listShower({ db }: OperationsContext, type: ResourceType, path: string) {
  return async (
    { request, principal, parentId, withoutLinks = false }: Call,
    query: ListQuery,
    { cells, count, nextAfter }: Page,
  ): Promise<JsonResponse> => {
    if (withoutLinks) {
      const write = resourceWriter(type, principal, cells, query.fields, withoutLinks);
      const { items, shown } = writeItems(count, write);
      return {
        status: 200,
        headers: {},
        body: `{"items":[${items}],"next":${JSON.stringify(nextAfter(shown) ?? null)}}`,
      };
    }
    const embedded = await embed(db, principal, cells, query.expand, count, query.limit);
    const write = resourceWriter(type, principal, cells, query.fields);
    const { items, shown } = writeItems(embedded.count, (index) => write(index, embedded.write(index)));
    const next = nextAfter(shown);
    const links: Record<string, { href: string }> = { self: { href: request.url } };
    const headers: Record<string, string> = {};
    if (next !== undefined) {
      const parameters = new URLSearchParams(request.query as Record<string, string>);
      parameters.set('after', next);
      const href = `${path.replace(':parent', parentId ?? '')}?${parameters}`;
      links.next = { href };
      // RFC 8288. URLSearchParams percent-encodes the query, so it cannot contain `>`.
      headers.link = `<${href}>; rel="next"`;
    }
    return { status: 200, headers, body: `{"items":[${items}],"_links":${JSON.stringify(links)}}` };
  };
}

function readHandler({ db }: OperationsContext, type: ResourceType, turns: OperationTurns): Handler {
  const read = createReader(db, type);
  return async ({ request, principal, id, parentId }) => {
    const { fields, expand } = readResourceQuery(type, request.query);
    const { owner } = callerOfToken(principal);
    const row = await read(principal, id, parentId);
    if (row === undefined) throw notFound(type);
    const readEmbedded = async () => (await embed(db, principal, cellsOf(type, row), expand, 1, 1)).write(0);
    const isLarge = expand.length > 0 && turns.read.of(owner) > readLatelyMax;
    const embedded = isLarge ? await turns.large.run(principal, readEmbedded) : await readEmbedded();
    // Also what is not sent, because the client has it.
    turns.read.add(owner, embedded.length);
    const validators = validatorsOf(type, row, principal, fields, embedded);
    const headers = validatorHeaders(validators);
    if (isNotModified(request.headers, validators)) return { status: 304, headers, body: null };
    return { status: 200, headers, body: writeResource(type, principal, row, fields, embedded) };
  };
}

function createHandler(context: OperationsContext, type: ResourceType): Handler {
  const check = bodyCheck(createSchema(type), type.fields);
  const create = batchCreations(context.db, type, context.additions, context.onPublished);
  return async ({ request, principal, parentId }) => {
    const values = check(request.body);
    const author = requireUser(principal);
    if (type.parent !== null && !isId(parentId ?? '')) throw notFound(type.parent);
    const owner = ownerOf(principal);
    const keyed = readIdempotencyKey(request.headers['idempotency-key'], owner, request);
    const bytes = bodyBytes(request) + creationBytes;
    const response = await inSpan('database transaction', () => {
      const traceparent = activeTraceparent();
      const showCreated = (row: Row) => show(type, row, principal, 201, { location: pathOf(type, row) });
      const creation = { author, values, parentId: parentId ?? null, traceparent, keyed, show: showCreated };
      return create({ owner: author, part: principal.clientId }, creation, bytes);
    });
    return response ?? rejectCreation(context.db, type, principal, parentId);
  };
}

/** Approximate size of the body. A chunked request has no Content-Length. */
function bodyBytes({ headers, body }: ResourceRequest): number {
  const length = headers['content-length'];
  return length === undefined ? Buffer.byteLength(JSON.stringify(body)) : Number(length);
}

/** @throws Problem 404 if the principal cannot read the parent, 403 if it may not add to it, 409 if it may */
async function rejectCreation(
  db: Database,
  { name, parent, createdBy }: ResourceType,
  principal: Principal,
  parentId: string | undefined,
): Promise<never> {
  if (parent !== null) {
    const found = await findVisible(db, parent, principal, parentId as string);
    if (found === undefined) throw notFound(parent);
    if (createdBy === 'owner' && found._owner !== principal.accountId) {
      throw new Problem(403, `Only the owner of the ${parent.item} may add ${name} to it.`, {
        code: 'not-owner',
      });
    }
  }
  const what = parent === null ? 'The account' : `The account or the ${parent.item}`;
  throw new Problem(409, `${what} is being deleted. Try again.`, {
    code: 'busy',
    headers: { 'retry-after': '1' },
  });
}

function replaceHandler(context: OperationsContext, type: ResourceType): Handler {
  const check = bodyCheck(replaceSchema(type), type.fields);
  return async ({ request, principal, id }) =>
    change(context, async (tx) => {
      const row = await lockOwnResource(tx, type, principal, id, request.headers);
      const updated = await updateResource(tx, type, row, replacedValues(type, row, request.body, check));
      return show(type, updated.row, principal);
    });
}

function patchHandler(context: OperationsContext, type: ResourceType): Handler {
  const check = bodyCheck(replaceSchema(type), type.fields);
  return async ({ request, principal, id }) =>
    change(context, async (tx) => {
      const row = await lockOwnResource(tx, type, principal, id, request.headers);
      const read = isJsonPatch(request) ? patchedValues : mergedValues;
      const updated = await updateResource(tx, type, row, read(type, row, request.body, check));
      return show(type, updated.row, principal);
    });
}

function deleteHandler(context: OperationsContext, type: ResourceType, turns: ListTurns): Handler {
  return async ({ request, principal, id }) => {
    const run = () =>
      change(context, async (tx) => {
        const row = await lockOwnResource(tx, type, principal, id, request.headers);
        await deleteResource(tx, type, row);
        return { status: 204, headers: {}, body: null };
      });
    return (await hasManyChildren(context.db, type, id)) ? turns.run(principal, run) : run();
  };
}

function actionHandler(context: OperationsContext, type: ResourceType, action: ResourceAction): Handler {
  const check = bodyCheck(actionSchema(action.input), action.input);
  return async ({ request, principal, id }) => {
    // Most actions need no body.
    const input = check(request.body === undefined ? {} : request.body);
    return changeIdempotently(context, request, principal, async (tx) => {
      const row = await lockOwnResource(tx, type, principal, id, request.headers);
      return show(type, await performAction(tx, type, row, action, input), principal);
    });
  };
}

function isJsonPatch(request: ResourceRequest): boolean {
  return mediaType(request.headers['content-type']) === jsonPatchType;
}

/** Runs a change in a transaction, and wakes the fan-out after the commit. */
async function change(
  { db, wake }: OperationsContext,
  work: (tx: Transaction) => Promise<JsonResponse>,
): Promise<JsonResponse> {
  const response = await inSpan('database transaction', () => db.transaction().execute(work));
  wake();
  return response;
}

/** Runs a POST, at most once per idempotency key. */
function changeIdempotently(
  context: OperationsContext,
  request: ResourceRequest,
  principal: Principal,
  work: (tx: Transaction) => Promise<JsonResponse>,
): Promise<JsonResponse> {
  const keyed = readIdempotencyKey(request.headers['idempotency-key'], ownerOf(principal), request);
  return change(context, keyed === undefined ? work : (tx) => runIdempotent(tx, keyed, work));
}

/** The owner of idempotency keys. */
function ownerOf({ accountId, clientId }: Principal): string {
  return `${accountId ?? '-'} ${clientId}`;
}

function show(
  type: ResourceType,
  row: OwnedRow | Row,
  principal: Principal,
  status = 200,
  headers: Record<string, string> = {},
): JsonResponse {
  return {
    status,
    headers: { ...validatorHeaders(validatorsOf(type, row, principal)), ...headers },
    body: writeResource(type, principal, row),
  };
}
