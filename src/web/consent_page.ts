/** The consent page: what an app requests, and what a user needs to decide. Works without JavaScript. */

import { hash } from 'node:crypto';
import { type Client, logoPath } from '../clients/client.ts';
import { isLoopbackHost } from '../config/config.ts';
import { openidScopes, type Scope, type ScopeCatalogue } from '../grants/scopes.ts';
import { type Html, html } from '../http/html.ts';
import { mcpPath } from '../oauth/protected_resource.ts';
import type { OAuthSettings } from '../oauth/settings.ts';
import { formTokenField } from './form_token.ts';
import { logoImage } from './logos.ts';

export interface ConsentContent {
  client: Client | undefined;
  name: string;
  token: string;
  /** Whether the user allowed what the app said of itself before it changed. */
  hasChanged: boolean;
  email: string;
  scopes: Scope[];
  /** Whether the app's own subscriptions may receive the user's events. */
  receivesEvents: boolean;
  /** The APIs that the scopes apply to; empty if there is only this server's. */
  apis: Api[];
  /** Null for a device, which polls for the result (RFC 8628). */
  redirectUri: string | null;
}

/** An API, as the operator declared it. */
export interface Api {
  name: string | null;
  url: string;
}

export function consentForm(content: ConsentContent): Html {
  const { client, name, token, hasChanged, email, scopes, receivesEvents, apis, redirectUri } = content;
  const destination = redirectUri === null ? null : describeRedirect(redirectUri);
  return html`${client !== undefined && logoImage(logoPath(client))}
<h1>Connect ${name}?</h1>
${hasChanged && html`<p class="notice" role="alert">The app has changed since you opened this page. Check it again.</p>`}
<p class="soft">Signed in as <strong>${email}</strong>.
<button class="link" form="switch" type="submit" name="action" value="switch">Not you?</button></p>
${describeOrigin(client)}
<p><strong>${name}</strong> would like to:</p>
<ul class="scopes">
${scopes.map((scope) => html`<li>${scope.description} <code class="soft">${scope.name}</code></li>`)}
${receivesEvents && html`<li>${eventsDescription}</li>`}
</ul>
${describePower(scopes)}
${describeApis(apis)}
${
  destination?.isLocal &&
  html`<p class="notice">This app runs on your device, not on a website. Continue only if you just started it yourself.</p>`
}
<p class="soft small">${
    destination !== null && html`You will be sent to <strong class="host">${destination.text}</strong>. `
  }You can disconnect this app at any time in <a href="/account" target="_blank" rel="noopener">your account</a>.</p>
${describePapers(client)}
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
<input type="hidden" name="seen" value="${descriptionDigest(client)}">
<div class="choices">
<button type="submit" name="action" value="allow">Allow</button>
<button class="secondary" type="submit" name="action" value="deny">Deny</button>
</div>
</form>
<form id="switch" method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
</form>`;
}

/** Identifies what an app says of itself and what the server says of it: what the user decides on. */
export function descriptionDigest(client: Client | undefined): string {
  if (client === undefined) return '';
  const { name, state, redirectUris, metadata, logo } = client;
  return hash('sha256', JSON.stringify([name, state, redirectUris, metadata, logo]), 'base64url');
}

/**
 * The APIs of a request: those in `resource` (RFC 8707), or this server's. Empty for this server's API if the operator declares no
 * other.
 */
export function requestedApis(
  resource: unknown,
  declared: OAuthSettings['resources'],
  baseUrl: string,
): Api[] {
  // An app can name an API as often as it likes.
  const asked = [...new Set([resource ?? baseUrl].flat().map(String))];
  if (declared.length === 0 && asked.every((url) => url === baseUrl)) return [];
  return asked.map((url) => {
    if (url === baseUrl) return { name: 'This server', url };
    if (url === baseUrl + mcpPath) return { name: 'This server’s tools for AI agents', url };
    const known = declared.find((entry) => typeof entry === 'object' && entry.url === url);
    return { name: (typeof known === 'object' && known.name) || null, url };
  });
}

function describeApis(apis: Api[]): Html | null {
  if (apis.length === 0) return null;
  return html`<p>${apis.length === 1 ? 'These permissions apply to this API:' : 'These permissions apply to each of these APIs:'}</p>
<ul class="scopes apis">
${apis.map(({ name, url }) => html`<li>${name !== null && html`<strong>${name}</strong> `}<code class="soft">${url}</code></li>`)}
</ul>`;
}

/** Permissions that no ordinary app has, because they reach other apps and the people who use them. */
function describePower(scopes: readonly Scope[]): Html | null {
  const management = scopes.filter(({ isManagement }) => isManagement === true);
  if (management.length === 0) return null;
  const isReading = management.every(({ name }) => name.startsWith('read:'));
  return html`<p class="notice"><strong>This is more than most apps ask for.</strong> ${
    isReading
      ? 'This app could see what you see in the console, such as the apps that you develop and their settings.'
      : 'This app could do what you can do in the console, such as delete the apps that you develop, or change where they send their users and events.'
  } Allow it only if you trust those who control it.</p>`;
}

/** The app's policy and terms (RFC 7591 section 2). */
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

/** Who vouches for the app's name. */
function describeOrigin(client: Client | undefined): Html | null {
  if (client === undefined || client.state === 'verified') return null;
  if (client.origin === 'document') {
    return html`<p class="soft small">This app is published by <strong class="host">${new URL(client.id).host}</strong>.</p>`;
  }
  if (client.origin === 'account') {
    return html`<p class="soft small">This app is not verified. Its developer chose its name${
      logoPath(client) !== null && ' and logo'
    }.</p>`;
  }
  return html`<p class="soft small">This app is not verified. It chose its own name.</p>`;
}

/** What an app's own subscriptions receive, worded like a scope. */
export const eventsDescription = 'receive your events that these permissions cover, as they happen';

/** Describes a scope; an unknown one by its name. */
export function describeScope(name: string, catalogue: ScopeCatalogue): Scope {
  const known = catalogue.get(name) ?? openidScopes.find((scope) => scope.name === name);
  return known ?? { name, description: name, isForUsers: true };
}

/** Describes the destination for a user: its host, or the scheme of an installed app. */
export function describeRedirect(redirectUri: string): { text: string; isLocal: boolean } {
  const url = URL.parse(redirectUri);
  if (url === null) return { text: 'this device', isLocal: false };
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    return { text: `an app on this device (${url.protocol})`, isLocal: true };
  }
  return { text: url.host, isLocal: isLoopbackHost(url.hostname) };
}
