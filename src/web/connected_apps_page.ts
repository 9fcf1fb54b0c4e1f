/**
 * The connected apps on the account page: a page of the list, or one app alone with everything that its agents are told of. Works without
 * JavaScript. Whatever a user has, a page has at most so many apps and so many bytes; links lead to the others.
 */

import type { Database } from '../database/database.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { type Html, html } from '../http/html.ts';
import { type ConnectedApp, findConnectedApp, listConnectedApps } from '../oauth/connected_apps.ts';
import { type EventRules, mayReceiveEvents } from '../webhooks/subscriptions/app_subscriptions.ts';
import { type AccountPlace, firstPlace, isFirst, placeFields, placeUrl } from './account_place.ts';
import { agentSubscriptionsContents } from './agent_subscription_pages.ts';
import { fitting, shownAppName } from './bounded.ts';
import { describeScope, eventsDescription } from './consent_page.ts';
import { formTokenField } from './form_token.ts';
import { logoImage } from './logos.ts';

/** Maximum apps of a page, and bytes of them together. */
const appsMax = 25;
const bytesMax = 65_536;

export interface ConnectedAppsOptions {
  db: Database;
  scopes: ScopeCatalogue;
  eventRules: EventRules;
}

export interface ConnectedAppsShown {
  /** The place that is shown: not the wanted one if nothing is there any more. */
  place: AccountPlace;
  content: Html;
}

/** @param token the form token of the account page */
export async function connectedAppsContent(
  options: ConnectedAppsOptions,
  accountId: string,
  wanted: AccountPlace,
  token: string,
): Promise<ConnectedAppsShown> {
  const { db } = options;
  if (wanted.app !== null) {
    const app = await findConnectedApp(db, accountId, wanted.app);
    if (app === undefined) return connectedAppsContent(options, accountId, firstPlace, token);
    const items = await appItems(options, accountId, [app], wanted, token);
    const content = html`<p><a href="/account">All connected apps</a></p>
<ul class="apps">${items}</ul>`;
    return { place: wanted, content };
  }
  const page = await listConnectedApps(db, accountId, wanted, appsMax);
  // The last app of the page was disconnected.
  if (page.apps.length === 0 && page.nextAfter(0) === null && !isFirst(wanted))
    return connectedAppsContent(options, accountId, firstPlace, token);
  const items = fitting(await appItems(options, accountId, page.apps, wanted, token), bytesMax);
  const next = page.nextAfter(items.length);
  const content = html`<h2>Connected apps</h2>
${
  page.apps.length === 0
    ? html`<p class="soft">No apps are connected to your account.</p>`
    : html`<ul class="apps">${items}</ul>`
}
${pageLinks(isFirst(wanted), next === null ? null : placeUrl({ app: null, ...next }))}`;
  return { place: wanted, content };
}

function pageLinks(isStart: boolean, next: string | null): Html | false {
  if (isStart && next === null) return false;
  return html`<p>${!isStart && html`<a href="/account">First apps</a>`}${!isStart && next !== null && ' · '}${
    next !== null && html`<a href="${next}">More apps</a>`
  }</p>`;
}

async function appItems(
  options: ConnectedAppsOptions,
  accountId: string,
  apps: readonly ConnectedApp[],
  place: AccountPlace,
  token: string,
): Promise<Html[]> {
  const ofAgents = await agentSubscriptionsContents(options.db, {
    ...{ accountId, place, token, kinds: options.eventRules.kinds },
    apps: new Map(apps.map(({ clientId, grantId }) => [clientId, grantId])),
  });
  return apps.map((app) => appContent(options, app, ofAgents.get(app.clientId) ?? false, place, token));
}

/** Disconnecting takes two steps, because the app's subscriptions end with it. */
function appContent(
  { scopes, eventRules }: ConnectedAppsOptions,
  app: ConnectedApp,
  ofAgents: Html | false,
  place: AccountPlace,
  token: string,
): Html {
  const client = { id: app.clientId, maySubscribe: app.maySubscribe };
  const name = shownAppName(app.name);
  return html`<li>
<div class="app-name">${logoImage(app.logo)}<strong>${name}</strong></div>
<p class="soft small">Connected ${day(app.since)}, last used ${day(app.lastUsedAt)}</p>
<p class="small">This app can:</p>
<ul class="may small">${app.scopes.map((scope) => html`<li>${describeScope(scope, scopes).description}</li>`)}
${mayReceiveEvents(eventRules, client, app.scopes) && html`<li>${eventsDescription}</li>`}</ul>
${ofAgents}
<details>
<summary class="small" aria-label="Disconnect ${name}">Disconnect</summary>
<p class="small">The app loses access at once and receives no more events. It keeps what it has already received.</p>
<form method="post" action="/account/withdraw">
<input type="hidden" name="${formTokenField}" value="${token}">
${placeFields(place)}<input type="hidden" name="client_id" value="${app.clientId}">
<button class="danger" type="submit">Disconnect ${name}</button>
</form>
</details>
</li>`;
}

const dayFormat = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeZone: 'UTC' });

function day(date: Date): Html {
  return html`<time datetime="${date.toISOString().slice(0, 10)}">${dayFormat.format(date)}</time>`;
}
