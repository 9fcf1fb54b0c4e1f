/**
 * Pages that oidc-provider renders without a hook for them: errors that cannot be returned to the app, and the form that
 * forwards a browser by POST.
 */

import type { ErrorOut, KoaContextWithOIDC } from 'oidc-provider';
import { SuspendedClientError } from './provider_client.ts';
import type { ProviderPages } from './provider_options.ts';

/** oidc-provider's `renderError`. */
export function errorRenderer(pages: ProviderPages) {
  return async (ctx: KoaContextWithOIDC, out: ErrorOut, error: Error): Promise<void> => {
    ctx.type = 'html';
    ctx.body = errorPage(ctx, out, error, pages);
  };
}

function errorPage(ctx: KoaContextWithOIDC, out: ErrorOut, error: Error, pages: ProviderPages): string {
  const requestId = String(ctx.res.getHeader('request-id') ?? '');
  if (error.name === 'SessionNotFound') return pages.expired(requestId);
  const parameter = (name: string) => {
    const value = ctx.oidc?.params?.[name] ?? ctx.query[name];
    return typeof value === 'string' ? value : undefined;
  };
  const sent = { clientId: parameter('client_id'), redirectUri: parameter('redirect_uri') };
  return pages.error({
    code: out.error,
    description: out.error_description ?? '',
    isClientSuspended: error instanceof SuspendedClientError,
    requestId,
    sent,
  });
}

/**
 * Middleware that restyles oidc-provider's forwarding form (RFC 8628 section 3.3.1, form_post, change of account). The provider's
 * script submits the form, or the user presses a button. The script is unchanged, because the content security policy allows it
 * by its hash.
 */
export function styleForwardingForm(pages: ProviderPages) {
  const replacements = replacementsFor(pages);
  return (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> =>
    ctx.method === 'POST' && ctx.path === '/oauth/token' ? next() : restyle(ctx, next, replacements);
}

type Replacements = readonly (readonly [original: string, styled: string])[];

function replacementsFor({ brandName, hasBrandColor }: ProviderPages): Replacements {
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
      '<p>Select the button to continue.</p>',
    ],
    ['</body>', '</main></body>'],
  ];
}

async function restyle(
  ctx: KoaContextWithOIDC,
  next: () => Promise<void>,
  replacements: Replacements,
): Promise<void> {
  await next();
  const { body } = ctx;
  if (typeof body !== 'string' || !body.includes('<title>Submitting Callback</title>')) return;
  ctx.body = replacements.reduce((text, [original, styled]) => text.replace(original, () => styled), body);
}
