/** Signing out (OpenID Connect RP-Initiated Logout): nobody is signed out without being asked. */

import { html } from './html.ts';
import { renderPage } from './page.ts';

export function renderLogout(action: string, xsrf: string): string {
  return renderPage(
    'Sign out',
    html`<h1>Sign out?</h1>
<p class="soft">Apps that you connected stay connected.</p>
<form method="post" action="${action}">
<input type="hidden" name="xsrf" value="${xsrf}">
<div class="choices">
<button type="submit" name="logout" value="yes">Sign out</button>
<button class="secondary" type="submit">Stay signed in</button>
</div>
</form>`,
  );
}

export function renderLoggedOut(): string {
  return renderPage('Signed out', html`<h1>You are signed out</h1><p>You can close this page.</p>`);
}
