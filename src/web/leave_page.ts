/**
 * Replaces a redirect to an app that the operator did not register by a page with a link, until the user has acted (RFC 9700
 * section 4.11.2). The page shows the host of the destination. Works without JavaScript.
 */

import { type Html, html } from '../http/html.ts';
import type { LeavePage } from '../oauth/provider_options.ts';
import type { Brand } from './brand.ts';
import { describeRedirect } from './consent_page.ts';
import { reference, sentence } from './error_page.ts';
import { renderPage } from './page.ts';

/** Errors of `prompt=none` (OpenID Connect Core section 3.1.2.6). */
const silentErrors = new Set(['login_required', 'consent_required', 'interaction_required']);

export function renderLeavePage(brand: Brand, page: LeavePage): string {
  const { appName, error } = page;
  const title = error === null ? 'You are signed out' : 'Something went wrong';
  const destination = describeRedirect(page.url).text;
  return renderPage(
    brand,
    title,
    html`<h1>${title}</h1>
${error !== null && html`<p class="error" role="alert">${explain(error)}</p>`}
<p><strong>${appName}</strong> wants to send you to <strong class="host">${destination}</strong>.</p>
<p class="notice">Continue only if you know this app and expect to go there.</p>
${way(page, destination)}
${error !== null && reference(error.code, error.requestId)}`,
  );
}

function explain({ code, description }: NonNullable<LeavePage['error']>): string {
  if (silentErrors.has(code))
    return 'The app requested access in the background, but you need to sign in or confirm first.';
  return sentence(description || 'The request is not valid.');
}

function way({ url, fields }: LeavePage, destination: string): Html {
  const text = `Continue to ${destination}`;
  if (fields === null)
    return html`<p><a class="button" href="${url}" rel="noopener noreferrer">${text}</a></p>`;
  const inputs = Object.entries(fields).map(
    ([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`,
  );
  return html`<form method="post" action="${url}">
${inputs}
<button type="submit">${text}</button>
</form>`;
}
