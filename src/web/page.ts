/**
 * What every page shares: the frame around its content, the stylesheet, and the headers that keep it from being
 * framed, cached or scripted.
 */

import { readFileSync } from 'node:fs';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { type Html, html } from './html.ts';

const stylesheet = readFileSync(new URL('./pages.css', import.meta.url), 'utf8');

/** Pages need nothing but the stylesheet; nobody may put them into a frame (RFC 9700 section 4.16). */
export const pageHeaders: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
  'cross-origin-opener-policy': 'same-origin',
};

export function renderPage(title: string, content: Html): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>${title} · Nuncio</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/pages.css">
</head>
<body>
<main>
<p class="brand" aria-hidden="true"><span></span>Nuncio</p>
${content}
</main>
</body>
</html>
`.toString();
}

export function sendPage(reply: FastifyReply, status: number, title: string, content: Html): FastifyReply {
  return reply
    .code(status)
    .headers({ ...pageHeaders })
    .type('text/html; charset=utf-8')
    .send(renderPage(title, content));
}

/** Seconds that the stylesheet may be kept. */
const stylesheetSeconds = 3_600;

export function registerStylesheet(app: FastifyInstance): void {
  app.get('/assets/pages.css', async (_request, reply) => {
    return reply
      .header('cache-control', `public, max-age=${stylesheetSeconds}`)
      .type('text/css; charset=utf-8')
      .send(stylesheet);
  });
}
