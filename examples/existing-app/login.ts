/** The shop's login page. With `login_request` it completes a sign-in for the Nuncio server. */

import type { Express } from 'express';
import type { Pool } from 'pg';
import type { LoginRequest, Nuncio } from './nuncio.ts';
import { escapeHtml, page } from './page.ts';
import { beginSession, checkPassword, currentUser, type User } from './users.ts';

export function registerLogin(app: Express, pool: Pool, nuncio: Nuncio): void {
  app.get('/login', async (request, response) => {
    const id = textOf(request.query.login_request);
    const user = await currentUser(pool, request);
    if (id === '') return user === null ? response.send(loginPage('', null, '')) : response.redirect('/');
    const login = await nuncio.readLogin(id);
    if (user !== null && isEnough(user, login)) return response.redirect(await nuncio.acceptLogin(id, user));
    return response.send(loginPage(id, login, ''));
  });

  app.post('/login', async (request, response) => {
    const { email, password, action } = request.body;
    const id = textOf(request.body.login_request);
    if (id !== '' && action === 'cancel') return response.redirect(303, await nuncio.rejectLogin(id));
    const userId = await checkPassword(pool, textOf(email), textOf(password));
    if (userId === null) {
      const login = id === '' ? null : await nuncio.readLogin(id);
      return response.status(422).send(loginPage(id, login, 'Incorrect email address or password.'));
    }
    await beginSession(pool, response, userId);
    if (id === '') return response.redirect(303, '/');
    const { rows } = await pool.query('select id, email, name from shop.users where id = $1', [userId]);
    const user: User = { ...rows[0], signedInAt: Math.floor(Date.now() / 1_000) };
    return response.redirect(303, await nuncio.acceptLogin(id, user));
  });
}

/** Whether the user's session satisfies the app's request. Otherwise the user enters the password again. */
function isEnough(user: User, { prompt, max_age: maxAge }: LoginRequest): boolean {
  const words = prompt?.split(' ') ?? [];
  if (words.includes('login') || words.includes('select_account')) return false;
  return maxAge === null || Date.now() / 1_000 - user.signedInAt < maxAge;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function loginPage(id: string, login: LoginRequest | null, fault: string): string {
  const why = login?.client
    ? `<p>to continue to <strong>${escapeHtml(login.client.client_name)}</strong></p>`
    : '';
  return page(
    'Sign in to the shop',
    `${why}${fault && `<p role="alert">${escapeHtml(fault)}</p>`}<form method="post" action="/login">
<input type="hidden" name="login_request" value="${escapeHtml(id)}">
<label>Email <input name="email" type="email" autocomplete="username"></label>
<label>Password <input name="password" type="password" autocomplete="current-password"></label>
<button>Sign in</button>${id && '<button name="action" value="cancel">Cancel</button>'}</form>`,
  );
}
