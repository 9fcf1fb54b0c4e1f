/**
 * `/logos/<digest>`: the uploaded logos of apps, with the type that the server found in the content. Opened directly, a logo
 * is sandboxed: no script, no origin.
 */

import type { FastifyInstance } from 'fastify';
import { findLogo } from '../apps/logo.ts';
import type { Database } from '../database/database.ts';
import { isNotModified } from '../http/conditional.ts';
import { type Html, html } from '../http/html.ts';
import { Problem } from '../http/problem.ts';

const headers: Readonly<Record<string, string>> = {
  'content-security-policy': "default-src 'none'; sandbox",
  'content-disposition': 'inline',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-frame-options': 'DENY',
  // Browsers cache it for a year, shared caches do not: the logo of a suspended app must disappear.
  'cache-control': 'private, max-age=31536000, immutable',
};

export function registerLogos(app: FastifyInstance, db: Database): void {
  app.get<{ Params: { digest: string } }>('/logos/:digest', async (request, reply) => {
    const { digest } = request.params;
    const logo = /^[A-Za-z0-9_-]{43}$/.test(digest) ? await findLogo(db, digest) : undefined;
    if (logo === undefined) throw new Problem(404, 'Logo not found.');
    const etag = `"${digest}"`;
    reply.headers({ ...headers, etag });
    if (isNotModified(request.headers, { etag, modifiedAt: null })) return reply.code(304).send();
    return reply.type(logo.type).send(logo.content);
  });
}

/** The logo on a page, if there is one. Its alternative text is empty, because the name is beside it. */
export function logoImage(path: string | null): Html | null {
  return path === null ? null : html`<img class="logo" src="${path}" alt="" width="48" height="48">`;
}
