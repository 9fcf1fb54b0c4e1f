/** Sign-out (OpenID Connect RP-Initiated Logout). It always asks for confirmation. */

import { html } from '../http/html.ts';
import type { Brand } from './brand.ts';
import { renderPage } from './page.ts';

export function renderLogout(brand: Brand, action: string, xsrf: string): string {
  return renderPage(
    brand,
    'Sign out',
    html`<h1>Sign out?</h1>
<p class="soft">Your connected apps stay connected.</p>
<form method="post" action="${action}">
<input type="hidden" name="xsrf" value="${xsrf}">
<div class="choices">
<button type="submit" name="logout" value="yes">Sign out</button>
<button class="secondary" type="submit">Stay signed in</button>
</div>
</form>`,
  );
}

/** @param isSignedIn whether the user chose to stay signed in */
export function renderLoggedOut(brand: Brand, isSignedIn: boolean): string {
  if (isSignedIn) {
    return renderPage(
      brand,
      'Still signed in',
      html`<h1>You are still signed in</h1>
<p><a href="/account">Go to your account</a></p>`,
    );
  }
  return renderPage(
    brand,
    'Signed out',
    html`<h1>You are signed out</h1>
<p>You can close this page.</p>
<p><a href="/account">Sign in again</a></p>`,
  );
}
