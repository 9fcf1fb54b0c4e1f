/** The shop's settings page, with the apps that the user connected. */

import type { Express } from 'express';
import type { Pool } from 'pg';
import type { Grant, Nuncio } from './nuncio.ts';
import { escapeHtml, page } from './page.ts';
import { currentUser } from './users.ts';

export function registerSettings(app: Express, pool: Pool, nuncio: Nuncio): void {
  app.get('/settings', async (request, response) => {
    const user = await currentUser(pool, request);
    if (user === null) return response.redirect('/login');
    const apps = await nuncio.connectedApps(user.id);
    const list = apps.length === 0 ? '<p>No app is connected.</p>' : apps.map(appContent).join('');
    return response.send(page('Settings', `<h2>Connected apps</h2>${list}<p><a href="/">Orders</a></p>`));
  });

  app.post('/settings/disconnect', async (request, response) => {
    const user = await currentUser(pool, request);
    if (user === null) return response.redirect(303, '/login');
    // The form may contain any id: only withdraw one of the user's own grants.
    const grant = (await nuncio.connectedApps(user.id)).find(({ id }) => id === request.body.grant);
    if (grant !== undefined) await nuncio.withdraw(grant.id);
    return response.redirect(303, '/settings');
  });
}

function appContent({ id, client_name: name, scope_descriptions: words }: Grant): string {
  const may = Object.values(words)
    .map((text) => `<li>${escapeHtml(text)}</li>`)
    .join('');
  return `<section><h3>${escapeHtml(name)}</h3><ul>${may}</ul>
<form method="post" action="/settings/disconnect"><input type="hidden" name="grant" value="${escapeHtml(id)}">
<button>Disconnect ${escapeHtml(name)}</button></form></section>`;
}
