/**
 * The page for a request that cannot be answered by a redirect: the person who sees it learns that it is not
 * their fault, the developer what is wrong.
 */

import { html } from './html.ts';
import { renderPage } from './page.ts';

export function renderErrorPage(error: { code: string; description: string; requestId: string }): string {
  return renderPage(
    'This did not work',
    html`<h1>This did not work</h1>
<p class="error" role="alert">${sentence(error.description || 'The request is not valid.')}</p>
<p class="soft">Go back to the app that sent you here and try again. If it happens again, tell the people who make
that app.</p>
<p class="soft small">Error <code>${error.code}</code>, request <code>${error.requestId}</code></p>`,
  );
}

function sentence(text: string): string {
  const start = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}
