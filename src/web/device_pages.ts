/**
 * The device pages (RFC 8628 section 3.3): enter the code, see which app asks, say yes or no. What comes after is
 * login and consent as for every app.
 */

import type { Brand } from './brand.ts';
import { html } from './html.ts';
import { renderPage } from './page.ts';

export interface DevicePage {
  action: string;
  /** The engine's own form token. */
  xsrf: string;
}

/** @param fault why the last code did not do */
export function renderCodeInput(brand: Brand, { action, xsrf }: DevicePage, fault: string | null): string {
  return renderPage(
    brand,
    'Connect a device',
    html`<h1>Connect a device</h1>
<p class="soft">Enter the code that your device shows.</p>
${fault !== null && html`<p class="error" role="alert" id="fault">${fault}</p>`}
<form method="post" action="${action}">
<input type="hidden" name="xsrf" value="${xsrf}">
<label for="user_code">Code</label>
<input class="code" id="user_code" name="user_code" required autofocus autocomplete="off" autocapitalize="characters"
spellcheck="false" maxlength="32" ${fault !== null && html`aria-describedby="fault"`}>
<button type="submit">Continue</button>
</form>`,
  );
}

export function renderCodeConfirmation(
  brand: Brand,
  { action, xsrf }: DevicePage,
  client: string,
  userCode: string,
): string {
  return renderPage(
    brand,
    'Is this your device?',
    html`<h1>Is this your device?</h1>
<p><strong>${client}</strong> asks to be connected. Your device must show this code:</p>
<p><input class="code" value="${userCode}" readonly aria-label="Code"></p>
<p class="notice">If somebody sent you this code or a link to this page, do not go on.</p>
<form method="post" action="${action}">
<input type="hidden" name="xsrf" value="${xsrf}">
<input type="hidden" name="user_code" value="${userCode}">
<input type="hidden" name="confirm" value="yes">
<div class="choices">
<button type="submit">Yes, continue</button>
<button class="secondary" type="submit" name="abort" value="yes">No</button>
</div>
</form>`,
  );
}

export function renderDeviceRefused(brand: Brand): string {
  return renderPage(
    brand,
    'Nothing was connected',
    html`<h1>Nothing was connected</h1>
<p role="status">The device may not act for you. You can close this page.</p>
<p><a href="/device">Enter another code</a></p>`,
  );
}

export function renderDeviceSuccess(brand: Brand, client: string): string {
  return renderPage(
    brand,
    'Your device is connected',
    html`<h1>Your device is connected</h1>
<p role="status">You can close this page and go back to <strong>${client}</strong>.</p>
<p><a href="/account">See which apps act for you</a></p>`,
  );
}
