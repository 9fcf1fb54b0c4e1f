/** The device pages (RFC 8628 section 3.3): enter the code, then confirm the app. Login and consent follow. */

import { html } from '../http/html.ts';
import type { Brand } from './brand.ts';
import { renderPage } from './page.ts';

export interface DevicePage {
  action: string;
  /** The form token of oidc-provider. */
  xsrf: string;
}

/** @param error why the last code was rejected */
export function renderCodeInput(brand: Brand, { action, xsrf }: DevicePage, error: string | null): string {
  return renderPage(
    brand,
    'Connect a device',
    html`<h1>Connect a device</h1>
<p class="soft">Enter the code that your device shows.</p>
${error !== null && html`<p class="error" role="alert" id="error">${error}</p>`}
<form method="post" action="${action}">
<input type="hidden" name="xsrf" value="${xsrf}">
<label for="user_code">Code</label>
<input class="code" id="user_code" name="user_code" required autofocus autocomplete="off" autocapitalize="characters"
spellcheck="false" maxlength="32" ${error !== null && html`aria-describedby="error"`}>
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
<p><strong>${client}</strong> wants to connect. Check that your device shows this code:</p>
<p><input class="code" value="${userCode}" readonly aria-label="Code"></p>
<p class="notice">If someone sent you this code or a link to this page, do not continue.</p>
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
    'Device not connected',
    html`<h1>Device not connected</h1>
<p role="status">The device has no access to your account. You can close this page.</p>
<p><a href="/device">Enter another code</a></p>`,
  );
}

export function renderDeviceSuccess(brand: Brand, client: string): string {
  return renderPage(
    brand,
    'Device connected',
    html`<h1>Device connected</h1>
<p role="status">You can close this page and return to <strong>${client}</strong>.</p>
<p><a href="/account">Manage connected apps</a></p>`,
  );
}
