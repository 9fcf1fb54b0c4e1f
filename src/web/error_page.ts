/**
 * Pages for what cannot be answered by a redirect: the person who sees one learns that it is not their fault and what
 * to do, the developer what is wrong, and the operator which request it was.
 */

import type { Problem } from '../http/problem.ts';
import type { PageError } from '../oauth/provider_options.ts';
import type { Brand } from './brand.ts';
import { type Html, html } from './html.ts';
import { renderPage } from './page.ts';

/** What each error means to somebody who has never heard of OAuth. */
const words: Readonly<Record<string, string>> = {
  invalid_redirect_uri:
    'The app that sent you here wants you to be sent on to an address that is not registered for it.',
  invalid_client: 'The app that sent you here is not known here.',
  suspended: 'The app that sent you here is suspended: the operator of this server does not let it connect.',
  temporarily_unavailable: 'There were too many requests from where you are. Wait a minute and try again.',
  server_error: 'Something went wrong here. Try again in a moment.',
};

/** What a developer does about it. */
const remedies: Readonly<Record<string, string>> = {
  invalid_redirect_uri:
    'The redirect_uri must be one of those registered for the app, letter for letter (RFC 9700 section 2.1).',
  invalid_client: 'Check the client_id, and that the app is registered at this server.',
};

/** Characters of what an app sent that are shown. */
const shownLengthMax = 200;

/** An error of the authorization server. */
export function renderErrorPage(brand: Brand, { code, description, requestId, sent }: PageError): string {
  const remedy = remedies[code];
  const name = code === 'invalid_client' ? 'client_id' : 'redirect_uri';
  const value = code === 'invalid_client' ? sent?.clientId : sent?.redirectUri;
  return renderPage(
    brand,
    'This did not work',
    html`<h1>This did not work</h1>
<p class="error" role="alert">${words[isSuspension(code, description) ? 'suspended' : code] ?? sentence(description || 'The request is not valid.')}</p>
<p class="soft">Go back to the app that sent you here and try again. If it happens again, tell the people who make
that app.</p>
${
  remedy !== undefined &&
  html`<details><summary>For the people who make the app</summary>
<p class="small">${description && sentence(description)} ${remedy}</p>
${
  value !== undefined &&
  html`<p class="small">The ${name} sent was <code>${value.slice(0, shownLengthMax)}</code></p>`
}
</details>`
}
${reference(code, requestId)}`,
  );
}

/** The engine has one code for both. */
function isSuspension(code: string, description: string): boolean {
  return code === 'invalid_client' && /\bsuspended\b/.test(description);
}

/** A question that was answered already, or too long ago, or that another browser was asked. */
export function renderExpiredPage(brand: Brand, requestId: string): string {
  return renderPage(
    brand,
    'This page has expired',
    html`<h1>This page has expired</h1>
<p>It was answered already, or waited too long. Go back to the app that sent you here and start again there.</p>
<p class="soft small">If it happens at once, your browser may refuse cookies.</p>
<p><a href="/account">See which apps act for you</a></p>
<p class="soft small">Request <code>${requestId}</code></p>`,
  );
}

/** A refusal of one of our own pages, or of an address where there is none. */
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
    'This did not work',
    html`<h1>This did not work</h1>
<p class="error" role="alert">${problem.message}</p>
<p>Go back, load the page again, and try once more.</p>
<p><a href="/">Go to the start page</a></p>
${reference(problem.code ?? String(problem.status), requestId)}`,
  );
}

export function reference(code: string, requestId: string): Html {
  return html`<p class="soft small">Error <code>${code}</code>, request <code>${requestId}</code></p>`;
}

/** A parameter's name keeps its spelling. */
export function sentence(text: string): string {
  const start = /^[a-z]+_/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}
