/**
 * Pagination of lists outside the declared collections: `limit`, an opaque cursor `after`, and a link to the next page in
 * the body and in the `Link` header (RFC 8288).
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import { isStorable } from './json.ts';
import { Problem } from './problem.ts';

export const pageSizeDefault = 50;
export const pageSizeMax = 200;
/** Cursors are base64url without padding. */
export const cursorCharactersMax = 4_096;
export const cursorPattern = '^[A-Za-z0-9_-]+$';
const cursorForm = new RegExp(cursorPattern);

export interface PageQuery {
  limit: number;
  /** The decoded cursor, or null for the first page. */
  after: string | null;
  /** Other query parameters. */
  parameters: Record<string, string>;
  invalid: () => Problem;
}

/** @throws Problem 400 for unknown or invalid parameters */
export function readPage(request: FastifyRequest, known: readonly string[] = []): PageQuery {
  const { limit, after, ...others } = request.query as Record<string, unknown>;
  const parameters: Record<string, string> = {};
  for (const [name, value] of Object.entries(others)) {
    if (!known.includes(name)) throw wrong(`${name} is not a parameter of this list.`);
    if (typeof value !== 'string') throw wrong(`${name} must be given only once.`);
    if (!isStorable(value)) throw wrong(`${name} contains a NUL character.`);
    parameters[name] = value;
  }
  const text = limit === undefined ? String(pageSizeDefault) : limit;
  const size = typeof text === 'string' && /^\d{1,4}$/.test(text) ? Number(text) : 0;
  if (size < 1 || size > pageSizeMax) {
    throw wrong(`limit must be an integer from 1 to ${pageSizeMax}.`);
  }
  const invalid = () =>
    new Problem(400, 'after must be the cursor from the next link of the same list.', {
      code: 'invalid-cursor',
    });
  const isCursor = (text: unknown) =>
    typeof text === 'string' && text.length <= cursorCharactersMax && cursorForm.test(text);
  if (after !== undefined && !isCursor(after)) throw invalid();
  const decoded = after === undefined ? null : Buffer.from(after as string, 'base64url').toString('latin1');
  return { limit: size, after: decoded, parameters, invalid };
}

/** @returns undefined if the parameter is absent. @throws Problem 400 */
export function readFlag({ parameters }: PageQuery, name: string): boolean | undefined {
  const value = parameters[name];
  if (value === undefined) return undefined;
  if (value === 'true' || value === 'false') return value === 'true';
  throw wrong(`${name} must be true or false.`);
}

/**
 * Returns the cursor as text that PostgreSQL accepts.
 * @throws Problem 400
 */
export function textCursor({ after, invalid }: PageQuery): string | null {
  if (after === null) return null;
  const text = Buffer.from(after, 'latin1').toString();
  if (!isStorable(text) || text.includes('\ufffd')) throw invalid();
  return text;
}

/**
 * @param found the items, and one more if there is a next page
 * @param key the cursor of an item
 * @param more the cursor of the next page if this page is short but not the last one
 */
export function sendPage<Item>(
  request: FastifyRequest,
  reply: FastifyReply,
  page: PageQuery,
  found: readonly Item[],
  represent: (item: Item) => unknown,
  key: (item: Item) => string,
  more: string | null = null,
): FastifyReply {
  const items = found.slice(0, page.limit);
  const links: Record<string, { href: string }> = { self: { href: request.url } };
  const last = items.at(-1);
  const after = found.length > page.limit && last !== undefined ? key(last) : more;
  if (after !== null) {
    const query = new URLSearchParams(page.parameters);
    query.set('limit', String(page.limit));
    query.set('after', Buffer.from(after).toString('base64url'));
    const href = `${request.url.split('?', 1)[0]}?${query}`;
    links.next = { href };
    reply.header('link', `<${href}>; rel="next"`);
  }
  return reply.send({ items: items.map(represent), _links: links });
}

function wrong(detail: string): Problem {
  return new Problem(400, detail, { code: 'invalid-parameter' });
}
