/** Consent: what an app asks for, in words, and everything by which a user can judge it. Works without JavaScript. */

import type { Client } from '../clients/client.ts';
import { isLoopbackHost } from '../config/config.ts';
import { openidScopes, type Scope, type ScopeCatalogue } from '../grants/scopes.ts';
import { formTokenField } from './form_token.ts';
import { type Html, html } from './html.ts';

export interface ConsentContent {
  client: Client | undefined;
  name: string;
  token: string;
  email: string;
  scopes: Scope[];
  /** Null where nobody is sent anywhere: a device waits for the answer (RFC 8628). */
  redirectUri: string | null;
}

/** The question itself. */
export function consentForm({ client, name, token, email, scopes, redirectUri }: ConsentContent): Html {
  const destination = redirectUri === null ? null : describeRedirect(redirectUri);
  return html`<h1>Connect ${name}?</h1>
<p class="soft">Signed in as <strong>${email}</strong>.
<button class="link" form="switch" type="submit" name="action" value="switch">Not you?</button></p>
${describeOrigin(client)}
<p><strong>${name}</strong> would like to:</p>
<ul class="scopes">
${scopes.map((scope) => html`<li>${scope.description} <code class="soft">${scope.name}</code></li>`)}
</ul>
${
  destination?.isLocal &&
  html`<p class="notice">This app runs on a computer, not on a website. Go on only if you have just started it
yourself.</p>`
}
<p class="soft small">${
    destination !== null && html`You will be sent to <strong class="host">${destination.text}</strong>. `
  }You can withdraw this at any time in <a href="/account" target="_blank" rel="noopener">your account</a>.</p>
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
<div class="choices">
<button type="submit" name="action" value="allow">Allow</button>
<button class="secondary" type="submit" name="action" value="deny">Deny</button>
</div>
</form>
<form id="switch" method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
</form>`;
}

/** By whose word the app is called what it is called. */
function describeOrigin(client: Client | undefined): Html | null {
  if (client === undefined || client.state === 'verified') return null;
  if (client.origin === 'document') {
    return html`<p class="soft small">It comes from <strong class="host">${new URL(client.id).host}</strong>.</p>`;
  }
  if (client.origin === 'account') {
    return html`<p class="soft small">The operator of this server has not verified this app; its name is its
developer’s choice.</p>`;
  }
  return html`<p class="soft small">This app registered itself; its name is its own choice.</p>`;
}

/** A scope in words; by its name where nothing is known of it. */
export function describeScope(name: string, catalogue: ScopeCatalogue): Scope {
  const known = catalogue.get(name) ?? openidScopes.find((scope) => scope.name === name);
  return known ?? { name, description: name, isForUsers: true };
}

/** Where the answer goes, in what a person can judge: a host, or the name of an installed app's scheme. */
export function describeRedirect(redirectUri: string): { text: string; isLocal: boolean } {
  const url = URL.parse(redirectUri);
  if (url === null) return { text: 'this device', isLocal: false };
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    return { text: `an app on this device (${url.protocol})`, isLocal: true };
  }
  return { text: url.host, isLocal: isLoopbackHost(url.hostname) };
}
