/** The part of the account page about apps that could not finish connecting. */

import { sql } from 'kysely';
import { type Attempt, readAttempts } from '../connections/connection_store.ts';
import type { Database } from '../database/database.ts';
import { type Html, html } from '../http/html.ts';
import { shownAppName } from './bounded.ts';

/** Maximum number of shown attempts. */
const shownMax = 5;
/** Connections that are read to find them. */
const readMax = 50;

/** As for connected apps, on the same page. */
const dayFormat = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeZone: 'UTC' });

/** What a failed step means to a user. */
const meanings: Readonly<Record<string, string>> = {
  'client-document': 'the app’s description could not be read. Only its developer can mend this.',
  authorize: 'the app’s request was not valid. Only its developer can mend this.',
  'sign-in': 'you were not signed in. Open the app and try again.',
  consent: 'you did not allow the access. If you want to, open the app and connect it again.',
  token:
    'you did your part, but the app could not complete the connection. Open the app and connect it again; if this happens again, contact its developer.',
  call: 'the app could not read your data. Disconnect it, and connect it again.',
};

/** Refused by the page itself, and not by the user. */
const lostPage =
  'the page on which you allow the access could not be used any more. Open the app and connect it again.';
const lostPageErrors = new Set(['form-token', 'sign-in-expired']);
const unverified = 'the operator of this server has not verified the app yet. You can try again later.';

/** @returns the section, or false if nothing failed lately */
export async function failedConnections(db: Database, accountId: string): Promise<Html | false> {
  const seen = new Set<string>();
  // Without callbacks of a connected app, about which its user can do nothing.
  const attempts = await readAttempts(db, accountId, readMax);
  // The latest attempt with an app counts: what worked afterwards needs no explanation.
  const failed = attempts.filter(({ clientId, outcome }) => {
    if (seen.has(clientId)) return false;
    seen.add(clientId);
    return outcome === 'refused';
  });
  const names = await readAppNames(
    db,
    failed.map(({ clientId }) => clientId),
  );
  const items = failed.flatMap(({ clientId, startedAt, refused }) => {
    const name = names.get(clientId);
    return name === undefined || refused === null ? [] : [item(name, startedAt, refused)];
  });
  if (items.length === 0) return false;
  return html`<h2>Not connected</h2>
<ul class="apps">${items.slice(0, shownMax)}</ul>`;
}

function item(
  name: string,
  startedAt: Date,
  { name: step, error, request }: NonNullable<Attempt['refused']>,
): Html {
  const day = dayFormat.format(startedAt);
  // Users cannot end here by refusing the access: that is the step `consent`.
  const isUnverified = step === 'authorize' && error === 'access_denied';
  const isLost = step === 'consent' && lostPageErrors.has(error ?? '');
  const known = isUnverified ? unverified : isLost ? lostPage : meanings[step];
  const meaning = known ?? 'something went wrong. Try again.';
  return html`<li><p class="small"><strong>${shownAppName(name)}</strong> could not finish connecting on <time datetime="${startedAt.toISOString()}">${day}</time>: ${meaning}</p>
${request !== null && html`<p class="soft small">Request <code>${request}</code></p>`}</li>`;
}

/** Names of registered apps only. Anyone can send the id of another one. */
async function readAppNames(db: Database, ids: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const { rows } = await sql<{ id: string; name: string }>`
    select id, name from clients where id = any(${[...ids]}::text[])`.execute(db);
  return new Map(rows.map(({ id, name }) => [id, name]));
}
