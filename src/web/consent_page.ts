/** Consent: what an app asks for, in words, and everything by which a user can judge it. Works without JavaScript. */

import { type Client, logoPath } from '../clients/client.ts';
import { isLoopbackHost } from '../config/config.ts';
import { openidScopes, type Scope, type ScopeCatalogue } from '../grants/scopes.ts';
import type { OAuthSettings } from '../oauth/settings.ts';
import { formTokenField } from './form_token.ts';
import { type Html, html } from './html.ts';
import { logoImage } from './logos.ts';

export interface ConsentContent {
  client: Client | undefined;
  name: string;
  token: string;
  email: string;
  scopes: Scope[];
  /** The APIs that the scopes are for; empty where there is none but this server's own. */
  apis: Api[];
  /** Null where nobody is sent anywhere: a device waits for the answer (RFC 8628). */
  redirectUri: string | null;
}

/** An API, as the operator declared it. */
export interface Api {
  name: string | null;
  url: string;
}

/** The question itself. */
export function consentForm({ client, name, token, email, scopes, apis, redirectUri }: ConsentContent): Html {
  const destination = redirectUri === null ? null : describeRedirect(redirectUri);
  return html`${client !== undefined && logoImage(logoPath(client))}
<h1>Connect ${name}?</h1>
<p class="soft">Signed in as <strong>${email}</strong>.
<button class="link" form="switch" type="submit" name="action" value="switch">Not you?</button></p>
${describeOrigin(client)}
<p><strong>${name}</strong> would like to:</p>
<ul class="scopes">
${scopes.map((scope) => html`<li>${scope.description} <code class="soft">${scope.name}</code></li>`)}
</ul>
${describeApis(apis)}
${
  destination?.isLocal &&
  html`<p class="notice">This app runs on a computer, not on a website. Go on only if you have just started it
yourself.</p>`
}
<p class="soft small">${
    destination !== null && html`You will be sent to <strong class="host">${destination.text}</strong>. `
  }You can withdraw this at any time in <a href="/account" target="_blank" rel="noopener">your account</a>.</p>
${describePapers(client)}
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

/**
 * The APIs that a request names by `resource` (RFC 8707), or by naming none. Where the operator declares no API elsewhere
 * there is only one that it can mean.
 */
export function requestedApis(
  resource: unknown,
  declared: OAuthSettings['resources'],
  baseUrl: string,
): Api[] {
  if (declared.length === 0) return [];
  return [resource ?? baseUrl].flat().map((each) => {
    const url = String(each);
    if (url === baseUrl) return { name: 'This server', url };
    const known = declared.find((entry) => typeof entry === 'object' && entry.url === url);
    return { name: (typeof known === 'object' && known.name) || null, url };
  });
}

function describeApis(apis: Api[]): Html | null {
  if (apis.length === 0) return null;
  return html`<p>${apis.length === 1 ? 'On this API:' : 'On each of these APIs:'}</p>
<ul class="scopes apis">
${apis.map(({ name, url }) => html`<li>${name !== null && html`<strong>${name}</strong> `}<code class="soft">${url}</code></li>`)}
</ul>`;
}

/** Links that the app registered (RFC 7591 section 2): the user may read before they decide. */
function describePapers(client: Client | undefined): Html | null {
  const { policy_uri: policy, tos_uri: terms } = client?.metadata ?? {};
  const links = [describePaper('Privacy policy', policy), describePaper('Terms of service', terms)].filter(
    (link) => link !== null,
  );
  if (links.length === 0) return null;
  return html`<p class="soft small">From the app: ${links.map((link, index) => html`${index > 0 && ' · '}${link}`)}</p>`;
}

function describePaper(text: string, uri: unknown): Html | null {
  const url = typeof uri === 'string' ? URL.parse(uri) : null;
  const isSafe = url?.protocol === 'https:' || (url?.protocol === 'http:' && isLoopbackHost(url.hostname));
  if (url === null || !isSafe) return null;
  return html`<a href="${url.href}" target="_blank" rel="noopener noreferrer">${text}</a> (<span class="host">${url.host}</span>)`;
}

/** By whose word the app is called what it is called. */
function describeOrigin(client: Client | undefined): Html | null {
  if (client === undefined || client.state === 'verified') return null;
  if (client.origin === 'document') {
    return html`<p class="soft small">It comes from <strong class="host">${new URL(client.id).host}</strong>.</p>`;
  }
  if (client.origin === 'account') {
    return html`<p class="soft small">The operator of this server has not verified this app; its name${
      logoPath(client) !== null && ' and logo'
    } ${logoPath(client) === null ? 'is' : 'are'} its developer’s choice.</p>`;
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
