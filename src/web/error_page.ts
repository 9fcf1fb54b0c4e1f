/**
 * Error pages, for errors that cannot be sent to the app by a redirect. They tell the user what to do, the developer what is
 * wrong, and the operator which request failed.
 */

import { type Html, html } from '../http/html.ts';
import type { Problem } from '../http/problem.ts';
import type { PageError } from '../oauth/provider_options.ts';
import type { Brand } from './brand.ts';
import { renderPage } from './page.ts';

/** What each error means to a user. */
const words: Readonly<Record<string, string>> = {
  invalid_redirect_uri: 'The app asked to send you to an address that is not registered for it.',
  invalid_client: 'The app that sent you here is not registered.',
  suspended: 'The app that sent you here is suspended and cannot connect to accounts.',
  temporarily_unavailable: 'Too many requests came from your network. Wait a minute and try again.',
  server_error: 'The server could not complete the request. Try again in a moment.',
};

/** What the app's developer can do. */
const remedies: Readonly<Record<string, string>> = {
  invalid_redirect_uri:
    'The redirect_uri must exactly match one that is registered for the app (RFC 9700 section 2.1).',
  invalid_client: 'Check the client_id and that the app is registered on this server.',
};

/** Maximum length of a shown parameter in characters. */
const shownLengthMax = 200;

/** An error of the authorization server. */
export function renderErrorPage(
  brand: Brand,
  { code, description, isClientSuspended = false, requestId, sent }: PageError,
): string {
  const remedy = remedies[code];
  const name = code === 'invalid_client' ? 'client_id' : 'redirect_uri';
  const value = code === 'invalid_client' ? sent?.clientId : sent?.redirectUri;
  return renderPage(
    brand,
    'Something went wrong',
    html`<h1>Something went wrong</h1>
<p class="error" role="alert">${words[isClientSuspended ? 'suspended' : code] ?? sentence(description || 'The request is not valid.')}</p>
<p class="soft">Go back to the app and try again. If the error persists, contact the app’s developer.</p>
${
  remedy !== undefined &&
  html`<details><summary>Details for developers</summary>
<p class="small">${description && sentence(description)} ${remedy}</p>
${
  value !== undefined &&
  html`<p class="small">The app sent the ${name} <code>${value.slice(0, shownLengthMax)}</code></p>`
}
</details>`
}
${reference(code, requestId)}`,
  );
}

/** For an interaction that is finished, expired, or belongs to another browser. */
export function renderExpiredPage(brand: Brand, requestId: string): string {
  return renderPage(
    brand,
    'This page has expired',
    html`<h1>This page has expired</h1>
<p>You have already responded, or the page was open for too long. Go back to the app and start again.</p>
<p class="soft small">If this page appears right away, check that your browser accepts cookies.</p>
<p><a href="/account">Manage connected apps</a></p>
<p class="soft small">Request <code>${requestId}</code></p>`,
  );
}

/** For an error of a page of this server, or an unknown address. */
export function renderProblemPage(brand: Brand, problem: Problem, requestId: string): string {
  if (problem.status === 404) {
    return renderPage(
      brand,
      'Page not found',
      html`<h1>Page not found</h1>
<p>Check the address, or go to the <a href="/">start page</a>.</p>`,
    );
  }
  return renderPage(
    brand,
    'Something went wrong',
    html`<h1>Something went wrong</h1>
<p class="error" role="alert">${problem.message}</p>
<p>Go back, reload the page and try again.</p>
<p><a href="/">Go to the start page</a></p>
${reference(problem.code ?? String(problem.status), requestId)}`,
  );
}

export function reference(code: string, requestId: string): Html {
  return html`<p class="soft small">Error <code>${code}</code>, request <code>${requestId}</code></p>`;
}

/** Makes a sentence. A leading parameter name keeps its spelling. */
export function sentence(text: string): string {
  const start = /^[a-z]+(?:_|\.[a-z])/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}
