/**
 * Serves the console at `/console`: the files of the build (scripts/build_console.ts), from memory and compressed. The content
 * security policy allows no other origin. The console gets its data from the API with access tokens.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { html } from '../http/html.ts';
import { Problem } from '../http/problem.ts';
import type { Brand } from './brand.ts';
import { brandHead } from './brand_assets.ts';
import { sendPage } from './page.ts';

/** Beside `src` in a checkout, and beside `dist` in the package. */
const buildFolder = fileURLToPath(new URL('../../build/console', import.meta.url));

const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "font-src 'self'",
  "frame-ancestors 'none'",
  "base-uri 'none'",
  "form-action 'self'",
].join('; ');

const types: Readonly<Record<string, string>> = {
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};

/** In order of preference: the smallest first. */
const encodings = [
  ['br', '.br'],
  ['gzip', '.gz'],
] as const;

interface Asset {
  type: string;
  /** By content coding. Always contains `identity`. */
  contents: Readonly<Record<string, Buffer>>;
}

interface Build {
  index: string;
  /** By name. */
  assets: ReadonlyMap<string, Asset>;
}

export function registerConsole(app: FastifyInstance, baseUrl: string): void {
  const build = readBuild(baseUrl, app.brand);
  const showIndex = async (_request: FastifyRequest, reply: FastifyReply) => sendIndex(reply, build);
  app.get('/console', showIndex);
  // The application handles every path below.
  app.get('/console/*', showIndex);
  app.get<{ Params: { name: string } }>('/console/assets/:name', async (request, reply) => {
    const asset = build?.assets.get(request.params.name);
    if (asset === undefined) throw new Problem(404, 'Not found.');
    return sendAsset(request, reply, asset);
  });
}

function sendIndex(reply: FastifyReply, build: Build | null): FastifyReply {
  if (build === null) {
    return sendPage(
      reply,
      503,
      'Console',
      html`<h1>The console is not built</h1>
<p>In a checkout, run <code>npm run build:console</code> and start the server again.</p>`,
    );
  }
  return secured(reply)
    .header('cache-control', 'no-store')
    .type('text/html; charset=utf-8')
    .send(build.index);
}

function sendAsset(request: FastifyRequest, reply: FastifyReply, asset: Asset): FastifyReply {
  const accepted = acceptedEncodings(request.headers['accept-encoding']);
  const coding = encodings.find(([name]) => accepted.has(name) && asset.contents[name] !== undefined)?.[0];
  if (coding !== undefined) reply.header('content-encoding', coding);
  return secured(reply)
    .header('vary', 'accept-encoding')
    .header('cache-control', 'public, max-age=31536000, immutable')
    .type(asset.type)
    .send(asset.contents[coding ?? 'identity']);
}

/** Codings with `q=0` are refused (RFC 9110 section 12.5.3). */
function acceptedEncodings(header: string | string[] | undefined): ReadonlySet<string> {
  const entries = String(header ?? '').split(',');
  const names = entries
    .filter((entry) => !/;\s*q=0(?:\.0*)?\s*$/i.test(entry))
    .map((entry) => (entry.split(';', 1)[0] as string).trim().toLowerCase());
  return new Set(names);
}

function secured(reply: FastifyReply): FastifyReply {
  return reply
    .header('content-security-policy', contentSecurityPolicy)
    .header('x-frame-options', 'DENY')
    .header('referrer-policy', 'no-referrer')
    .header('cross-origin-opener-policy', 'same-origin')
    .header('cross-origin-resource-policy', 'same-origin');
}

/** @returns null if the console is not built */
function readBuild(baseUrl: string, brand: Brand): Build | null {
  let names: string[];
  let index: string;
  try {
    index = readFileSync(join(buildFolder, 'index.html'), 'utf8');
    names = readdirSync(join(buildFolder, 'assets'));
  } catch {
    return null;
  }
  const assets = new Map<string, Asset>();
  for (const name of names) {
    const type = types[extname(name)];
    if (type !== undefined) assets.set(name, readAsset(name, type, new Set(names)));
  }
  // A base URL has no character that needs escaping; escape it anyway.
  const values: Record<string, string> = {
    '%ISSUER%': baseUrl,
    '%NAME%': brand.name,
    '%LOGO%': brand.logo === null ? '' : '/assets/brand-logo',
  };
  const shown = index.replaceAll(/%(?:ISSUER|NAME|LOGO)%/g, (mark) => html`${values[mark] ?? ''}`.toString());
  const head = brandHead(brand, 'brand-console.css').toString();
  return { index: shown.replace('</head>', () => `${head}\n</head>`), assets };
}

function readAsset(name: string, type: string, names: ReadonlySet<string>): Asset {
  const contents: Record<string, Buffer> = { identity: readFileSync(join(buildFolder, 'assets', name)) };
  for (const [coding, suffix] of encodings) {
    if (names.has(name + suffix)) contents[coding] = readFileSync(join(buildFolder, 'assets', name + suffix));
  }
  return { type, contents };
}
