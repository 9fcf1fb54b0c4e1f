/** What every page shares: its frame, its stylesheet, and headers against framing, caching and scripts. */

import { readFileSync } from 'node:fs';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { type Html, html } from '../http/html.ts';
import type { Brand } from './brand.ts';
import { assetSeconds, brandHead, registerBrandAssets } from './brand_assets.ts';

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
<link rel="stylesheet" href="/assets/pages.css">
${brandHead(brand, 'brand.css')}
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

export function registerStylesheet(app: FastifyInstance): void {
  app.get('/assets/pages.css', async (_request, reply) => {
    return reply
      .header('cache-control', `public, max-age=${assetSeconds}`)
      .type('text/css; charset=utf-8')
      .send(stylesheet);
  });
  registerBrandAssets(app);
}
