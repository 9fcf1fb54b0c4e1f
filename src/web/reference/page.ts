/**
 * The reference for people: `/docs`, with the documents that it shows. The page and everything on it comes from this
 * server (Swagger UI from its npm package); nothing is fetched from elsewhere, and its policy allows nothing else.
 */

import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { docsClientId, docsRedirectUri } from '../../clients/own_clients.ts';
import { asyncApiDocument } from './asyncapi.ts';
import { openApiDocument, type ReferenceSource } from './openapi.ts';

// What Swagger UI needs: styles on elements, icons as data.
const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Nuncio API reference</title>
<link rel="icon" href="favicon-32x32.png">
<link rel="stylesheet" href="swagger-ui.css">
</head>
<body>
<main id="reference"></main>
<noscript>This page needs JavaScript; the reference itself is at <a href="/openapi.json">/openapi.json</a>.</noscript>
<script src="swagger-ui-bundle.js"></script>
<script src="reference.js"></script>
</body>
</html>
`;

const script = (baseUrl: string) => `const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches);
dark.addEventListener('change', follow);
follow();
const reference = SwaggerUIBundle({
  url: '/openapi.json',
  dom_id: '#reference',
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null,
  oauth2RedirectUrl: ${JSON.stringify(docsRedirectUri(baseUrl))},
});
new BroadcastChannel('nuncio-docs').addEventListener('message', ({ data }) => {
  const pending = window.swaggerUIRedirectOauth2;
  const answer = new URLSearchParams(data);
  // RFC 6749 section 10.12: an answer to another question is none.
  if (!pending || answer.get('state') !== pending.state) return;
  const { auth, redirectUrl } = pending;
  if (answer.has('code')) {
    delete pending.state;
    auth.code = answer.get('code');
    pending.callback({ auth, redirectUrl });
  } else {
    const message = '[' + answer.get('error') + ']: ' + (answer.get('error_description') || 'not signed in');
    pending.errCb({ authId: auth.name, source: 'auth', level: 'error', message });
  }
});
reference.initOAuth({ clientId: ${JSON.stringify(docsClientId)}, usePkceWithAuthorizationCodeGrant: true });
`;

/**
 * Where the sign-in ends, in a window of its own. The pages of the sign-in cut the tie to the window that opened
 * theirs, so the answer goes through a channel that only this origin hears.
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
<p>You can close this window.</p>
<script src="oauth2-redirect.js"></script>
</body>
</html>
`;

const redirectScript = `new BroadcastChannel('nuncio-docs').postMessage(location.search);
window.close();
`;

const assets: Readonly<Record<string, string>> = {
  'swagger-ui.css': 'text/css; charset=utf-8',
  'swagger-ui-bundle.js': 'text/javascript; charset=utf-8',
  'favicon-32x32.png': 'image/png',
};

export function registerReference(app: FastifyInstance, source: ReferenceSource): void {
  const documents = {
    '/openapi.json': JSON.stringify(openApiDocument(source)),
    '/asyncapi.json': JSON.stringify(asyncApiDocument(source)),
  };
  for (const [path, document] of Object.entries(documents)) {
    app.get(path, async (_request, reply) => {
      // Generators run in pages of other origins too.
      reply.header('access-control-allow-origin', '*').header('cache-control', 'public, max-age=300');
      return reply.type('application/json').send(document);
    });
  }
  // A page's own relative links need the slash.
  app.get('/docs', async (_request, reply) => reply.redirect('/docs/', 308));
  const [html, javascript] = ['text/html; charset=utf-8', 'text/javascript; charset=utf-8'];
  const made: readonly (readonly [path: string, type: string, content: string])[] = [
    ['/docs/', html, page],
    ['/docs/reference.js', javascript, script(source.baseUrl)],
    ['/docs/oauth2-redirect.html', html, redirectPage],
    ['/docs/oauth2-redirect.js', javascript, redirectScript],
  ];
  for (const [path, type, content] of made) {
    app.get(path, async (_request, reply) => guarded(reply).type(type).send(content));
  }
  const directory = dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'));
  for (const [name, type] of Object.entries(assets)) {
    let content: Promise<Buffer> | undefined;
    app.get(`/docs/${name}`, async (_request, reply) => {
      content ??= readFile(join(directory, name));
      return guarded(reply)
        .type(type)
        .header('cache-control', 'public, max-age=86400')
        .send(await content);
    });
  }
}

function guarded(reply: FastifyReply): FastifyReply {
  return reply
    .header('content-security-policy', contentSecurityPolicy)
    .header('referrer-policy', 'no-referrer');
}
