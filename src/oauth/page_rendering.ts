/**
 * What the engine shows where it does not ask for a page by name: errors that cannot be sent back to the app, and the
 * form that sends a browser on by POST.
 */

import type { ErrorOut, KoaContextWithOIDC } from 'oidc-provider';
import type { EnginePages } from './engine_options.ts';

/** For the engine's `renderError`. */
export function errorRenderer(pages: EnginePages) {
  return async (ctx: KoaContextWithOIDC, out: ErrorOut, error: Error): Promise<void> => {
    ctx.type = 'html';
    ctx.body = errorPage(ctx, out, error, pages);
  };
}

function errorPage(ctx: KoaContextWithOIDC, out: ErrorOut, error: Error, pages: EnginePages): string {
  const requestId = String(ctx.res.getHeader('request-id') ?? '');
  if (error.name === 'SessionNotFound') return pages.expired(requestId);
  const parameter = (name: string) => {
    const value = ctx.oidc?.params?.[name] ?? ctx.query[name];
    return typeof value === 'string' ? value : undefined;
  };
  const sent = { clientId: parameter('client_id'), redirectUri: parameter('redirect_uri') };
  return pages.error({ code: out.error, description: out.error_description ?? '', requestId, sent });
}

/**
 * A form that a script submits, or a button where there is no script (RFC 8628 section 3.3.1, form_post, a change of the
 * account): the engine writes it bare. It gets the look of our pages; its script, which the policy names by its digest,
 * stays as it is.
 */
export function dressForwardingForm(pages: EnginePages) {
  const replacements = replacementsFor(pages);
  return (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> =>
    ctx.method === 'POST' && ctx.path === '/oauth/token' ? next() : dress(ctx, next, replacements);
}

type Replacements = readonly (readonly [bare: string, dressed: string])[];

function replacementsFor({ brandName, hasBrandColor }: EnginePages): Replacements {
  const name = brandName.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
  const brandColor = hasBrandColor ? '\n  <link rel="stylesheet" href="/assets/brand.css">' : '';
  return [
    ['<html>', '<html lang="en">'],
    [
      '<meta http-equiv="X-UA-Compatible" content="IE=edge">',
      `<meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="/assets/pages.css">${brandColor}`,
    ],
    ['<title>Submitting Callback</title>', `<title>One moment · ${name}</title>`],
    ['<body>', '<body><main><h1>One moment</h1>'],
    [
      "Your browser does not support JavaScript or you've disabled it.<br/>",
      '<p>Press the button to go on.</p>',
    ],
    ['</body>', '</main></body>'],
  ];
}

async function dress(
  ctx: KoaContextWithOIDC,
  next: () => Promise<void>,
  replacements: Replacements,
): Promise<void> {
  await next();
  const { body } = ctx;
  if (typeof body !== 'string' || !body.includes('<title>Submitting Callback</title>')) return;
  ctx.body = replacements.reduce((text, [bare, dressed]) => text.replace(bare, () => dressed), body);
}
