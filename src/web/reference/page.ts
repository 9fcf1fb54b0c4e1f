/**
 * The reference at `/docs`, and the OpenAPI and AsyncAPI documents. The page is complete without JavaScript. Its policy
 * allows nothing from other servers.
 */

import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { brotliCompress, gzip } from 'node:zlib';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { docsClientId, docsRedirectUri } from '../../clients/own_clients.ts';
import { brandHead } from '../brand_assets.ts';
import { asyncApiDocument } from './asyncapi.ts';
import { openApiDocument, type ReferenceSource } from './openapi.ts';
import type { ApiDocument } from './reader/document.ts';
import { readerPage } from './reader/reader_page.ts';

const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/**
 * The end of the sign-in, in its own window. The sign-in pages cut the link to the opening window, so the response goes
 * through a broadcast channel of this origin.
 */
const redirectPage = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Signed in</title>
</head>
<body>
<main>
<h1>Signed in</h1>
<p>You can close this window.</p>
</main>
<script src="oauth2-redirect.js"></script>
</body>
</html>
`;

const redirectScript = `new BroadcastChannel('nuncio-docs').postMessage(location.search);
window.close();
`;

/** Seconds that browsers cache the page, its style sheet and its script. */
const pageSeconds = 300;

export function registerReference(app: FastifyInstance, source: ReferenceSource): void {
  let built: ReturnType<typeof openApiDocument> | undefined;
  const openApi = () => {
    built ??= openApiDocument(source);
    return built;
  };
  // Built when first read.
  const documents = { '/openapi.json': openApi, '/asyncapi.json': () => asyncApiDocument(source) };
  for (const [path, document] of Object.entries(documents)) {
    const send = compressed(async () => JSON.stringify(document()));
    app.get(path, async (request, reply) => {
      // Code generators also run in pages of other origins.
      reply
        .header('access-control-allow-origin', '*')
        .header('cache-control', `public, max-age=${pageSeconds}`);
      return send(request, reply.type('application/json'));
    });
  }
  // The page's relative links need the slash.
  app.get('/docs', async (_request, reply) => reply.redirect('/docs/', 308));
  const page = () =>
    readerPage({
      head: brandHead(app.brand, 'brand.css'),
      // The document is built as plain JSON. Tests validate it with the schema of OpenAPI 3.1.
      document: openApi() as unknown as ApiDocument,
      signIn: { clientId: docsClientId, redirectUri: docsRedirectUri(source.baseUrl) },
    });
  const [html, javascript] = ['text/html; charset=utf-8', 'text/javascript; charset=utf-8'];
  const beside = (name: string) => () => readFile(new URL(`./reader/${name}`, import.meta.url), 'utf8');
  const files: readonly (readonly [path: string, type: string, read: () => Promise<string>])[] = [
    ['/docs/', html, async () => page()],
    ['/docs/reader.css', 'text/css; charset=utf-8', beside('reader.css')],
    ['/docs/reader.js', javascript, beside('reader.js')],
    ['/docs/oauth2-redirect.html', html, async () => redirectPage],
    ['/docs/oauth2-redirect.js', javascript, async () => redirectScript],
  ];
  for (const [path, type, read] of files) {
    const send = compressed(read);
    app.get(path, async (request, reply) => {
      return send(
        request,
        guarded(reply).type(type).header('cache-control', `public, max-age=${pageSeconds}`),
      );
    });
  }
}

function guarded(reply: FastifyReply): FastifyReply {
  return reply
    .header('content-security-policy', contentSecurityPolicy)
    .header('referrer-policy', 'no-referrer');
}

const encoders = { br: promisify(brotliCompress), gzip: promisify(gzip) };

/** Sends a constant text, compressed as the request allows. Each encoding is created once, on first use. */
function compressed(
  read: () => Promise<string>,
): (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply> {
  const forms = new Map<string, Promise<Buffer>>();
  const make = async (encoding: keyof typeof encoders | 'identity') => {
    const text = await read();
    return encoding === 'identity' ? Buffer.from(text) : encoders[encoding](text);
  };
  return async (request, reply) => {
    const encoding = chooseEncoding(request.headers['accept-encoding']);
    let form = forms.get(encoding);
    if (form === undefined) {
      form = make(encoding);
      forms.set(encoding, form);
      form.catch(() => forms.delete(encoding));
    }
    if (encoding !== 'identity') reply.header('content-encoding', encoding);
    return reply.header('vary', 'accept-encoding').send(await form);
  };
}

/** RFC 9110 section 12.5.3, simplified: encodings with `q=0` are refused, all others are equal. */
function chooseEncoding(accepted: string | string[] | undefined): keyof typeof encoders | 'identity' {
  const offered = [accepted ?? '']
    .flat()
    .join(',')
    .split(',')
    .map((entry) => entry.trim().toLowerCase())
    .filter((entry) => !/;\s*q=0(\.0*)?$/.test(entry))
    .map((entry) => entry.split(';')[0]);
  if (offered.includes('br')) return 'br';
  return offered.includes('gzip') ? 'gzip' : 'identity';
}
