/**
 * The brand in the head of every page: icon, colors, and the theme color of the browser. All of it is loaded from files of this
 * origin, so no page needs an inline style.
 */

import type { FastifyInstance, FastifyReply } from 'fastify';
import { type Html, html } from '../http/html.ts';
import type { Brand } from './brand.ts';
import { brandStylesheet, consoleStylesheet, inkOn, themeColors } from './brand_colors.ts';

/** Seconds that browsers cache an asset. */
export const assetSeconds = 3_600;

/** The color of the icon if the operator has not set one. */
const colorDefault = '#3949c6';

/** @param stylesheet the brand's style sheet for this kind of page, loaded after the page's own */
export function brandHead(brand: Brand, stylesheet: 'brand.css' | 'brand-console.css'): Html {
  const { color, logo } = brand;
  const icon =
    logo === null
      ? html`<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">`
      : html`<link rel="icon" href="/assets/brand-logo" type="${logo.type}">`;
  if (color === null) return icon;
  const { light, dark } = themeColors(color);
  return html`${icon}
<meta name="theme-color" content="${light}" media="(prefers-color-scheme: light)">
<meta name="theme-color" content="${dark}" media="(prefers-color-scheme: dark)">
<link rel="stylesheet" href="/assets/${stylesheet}">`;
}

export function registerBrandAssets(app: FastifyInstance): void {
  const { color, logo, name } = app.brand;
  const css = 'text/css; charset=utf-8';
  const send = (reply: FastifyReply, type: string, content: string | Uint8Array) =>
    reply.header('cache-control', `public, max-age=${assetSeconds}`).type(type).send(content);
  if (color !== null) {
    const styles = { 'brand.css': brandStylesheet(color), 'brand-console.css': consoleStylesheet(color) };
    for (const [file, text] of Object.entries(styles)) {
      app.get(`/assets/${file}`, async (_request, reply) => send(reply, css, text));
    }
  }
  const icon = letterIcon(name, color ?? colorDefault);
  app.get('/assets/icon.svg', async (_request, reply) => send(asPicture(reply), 'image/svg+xml', icon));
  if (logo === null) return;
  app.get('/assets/brand-logo', async (_request, reply) => send(asPicture(reply), logo.type, logo.bytes));
}

/** An SVG that is opened directly is a document. The policy prevents scripts and requests. */
function asPicture(reply: FastifyReply): FastifyReply {
  return reply
    .header('content-security-policy', "default-src 'none'; style-src 'unsafe-inline'; sandbox")
    .header('cross-origin-resource-policy', 'same-origin');
}

/** The first character of the name on the brand's color. */
function letterIcon(name: string, color: string): string {
  const [first] = new Intl.Segmenter().segment(name.trim());
  const letter = first?.segment.toUpperCase() ?? '';
  return html`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><title>${name}</title><rect width="32" height="32" rx="8" fill="${color}"/><text x="16" y="22.5" font-family="system-ui, sans-serif" font-size="19" font-weight="600" text-anchor="middle" fill="${inkOn(color)}">${letter}</text></svg>`.toString();
}
