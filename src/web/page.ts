/** What every page shares: its frame, its stylesheet, and headers against framing, caching and scripts. */

import { readFileSync } from 'node:fs';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { type Brand, brandStylesheet } from './brand.ts';
import { type Html, html } from './html.ts';

declare module 'fastify' {
  interface FastifyInstance {
    /** The operator's name, logo and color. */
    brand: Brand;
  }
}

const stylesheet = readFileSync(new URL('./pages.css', import.meta.url), 'utf8');

/** Pages load only the stylesheet and images. Framing is forbidden (RFC 9700 section 4.16). */
export const pageHeaders: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
  'cross-origin-opener-policy': 'same-origin',
};

export function renderPage(brand: Brand, title: string, content: Html): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>${title} · ${brand.name}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/pages.css">
${brand.color !== null && html`<link rel="stylesheet" href="/assets/brand.css">`}
</head>
<body>
<main>
<p class="brand" aria-hidden="true">${brand.logo === null ? html`<span></span>` : html`<img src="/assets/brand-logo" alt="">`}${brand.name}</p>
${content}
${brandLinks(brand)}
</main>
</body>
</html>
`.toString();
}

/** Links to the operator's support, privacy policy and terms. */
function brandLinks({ supportUrl, privacyUrl, termsUrl }: Brand): Html | false {
  const links = [
    [supportUrl, 'Help'],
    [privacyUrl, 'Privacy'],
    [termsUrl, 'Terms'],
  ].filter(([url]) => url !== null);
  return (
    links.length > 0 &&
    html`<footer class="soft small">${links.map(([url, text]) => html`<a href="${url}" rel="noreferrer">${text}</a> `)}</footer>`
  );
}

export function sendPage(reply: FastifyReply, status: number, title: string, content: Html): FastifyReply {
  return reply
    .code(status)
    .headers({ ...pageHeaders })
    .type('text/html; charset=utf-8')
    .send(renderPage(reply.server.brand, title, content));
}

/** Seconds that browsers cache the stylesheet. */
const stylesheetSeconds = 3_600;

export function registerStylesheet(app: FastifyInstance): void {
  app.get('/assets/pages.css', async (_request, reply) => {
    return reply
      .header('cache-control', `public, max-age=${stylesheetSeconds}`)
      .type('text/css; charset=utf-8')
      .send(stylesheet);
  });
  const { color, logo } = app.brand;
  if (color !== null) {
    const text = brandStylesheet(color);
    app.get('/assets/brand.css', async (_request, reply) =>
      reply
        .header('cache-control', `public, max-age=${stylesheetSeconds}`)
        .type('text/css; charset=utf-8')
        .send(text),
    );
  }
  if (logo !== null) {
    app.get('/assets/brand-logo', async (_request, reply) =>
      reply
        // An SVG opened directly is a document: keep it from running scripts or loading anything.
        .header('content-security-policy', "default-src 'none'; style-src 'unsafe-inline'; sandbox")
        .header('cache-control', `public, max-age=${stylesheetSeconds}`)
        .header('cross-origin-resource-policy', 'same-origin')
        .type(logo.type)
        .send(logo.bytes),
    );
  }
}
