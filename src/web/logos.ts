/**
 * `/logos/<digest>`: logos that members uploaded for their apps. The type is the one that the server found in the
 * content. A browser that opens the address by itself gets a picture in a sandbox: no script, no origin.
 */

import type { FastifyInstance } from 'fastify';
import { findLogo } from '../apps/logo.ts';
import type { Database } from '../database/database.ts';
import { isNotModified } from '../http/conditional.ts';
import { Problem } from '../http/problem.ts';
import { type Html, html } from './html.ts';

const headers: Readonly<Record<string, string>> = {
  'content-security-policy': "default-src 'none'; sandbox",
  'content-disposition': 'inline',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-frame-options': 'DENY',
  // Browsers keep it for a year. Caches that others share do not: the logo of a suspended app is gone for everybody else.
  'cache-control': 'private, max-age=31536000, immutable',
};

export function registerLogos(app: FastifyInstance, db: Database): void {
  app.get<{ Params: { digest: string } }>('/logos/:digest', async (request, reply) => {
    const { digest } = request.params;
    const logo = /^[A-Za-z0-9_-]{43}$/.test(digest) ? await findLogo(db, digest) : undefined;
    if (logo === undefined) throw new Problem(404, 'There is no such logo.');
    const etag = `"${digest}"`;
    reply.headers({ ...headers, etag });
    if (isNotModified(request.headers, { etag, modifiedAt: null })) return reply.code(304).send();
    return reply.type(logo.type).send(logo.content);
  });
}

/** A logo on a page; nothing where there is none. The name stands beside it, so the picture says nothing more. */
export function logoImage(path: string | null): Html | null {
  return path === null ? null : html`<img class="logo" src="${path}" alt="" width="48" height="48">`;
}
