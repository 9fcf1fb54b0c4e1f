/**
 * The user's own page: who they are here, which apps act for them, and the button that ends that. Works without
 * JavaScript.
 */

import { randomBytes } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { type Account, findAccount } from '../accounts/account.ts';
import { signIn } from '../accounts/sign_in.ts';
import type { Database } from '../database/database.ts';
import { withdrawGrantsOfClient } from '../grants/grant.ts';
import { openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';
import { type ConnectedApp, listConnectedApps } from '../oauth/connected_apps.ts';
import type { LoginSessions } from '../oauth/login_session.ts';
import { type FormTokens, formTokenField } from './form_token.ts';
import { type Html, html } from './html.ts';
import { sendPage } from './page.ts';

export interface AccountPagesOptions {
  db: Database;
  scopes: ScopeCatalogue;
  formTokens: FormTokens;
  loginSessions: LoginSessions;
  baseUrl: string;
}

/** Holds a browser's own value for the login form, where it has no session yet. */
const formCookie = 'nuncio_form';

export function registerAccountPages(app: FastifyInstance, options: AccountPagesOptions): void {
  const { db, scopes, formTokens, loginSessions, baseUrl } = options;

  app.get('/account', async (request, reply) => {
    const { accountId, secret } = await loginSessions.find(request, reply);
    const account = accountId === null ? undefined : await findAccount(db, accountId);
    if (account === undefined) return showSignIn(request, reply, {});
    const apps = await listConnectedApps(db, account.id);
    const token = formTokens.make(accountContext(secret));
    return sendPage(reply, 200, 'Your account', accountContent(account, apps, token, scopes));
  });

  app.post('/account/sign-in', async (request, reply) => {
    formTokens.check(request, signInContext(readFormCookie(request) ?? ''));
    const form = request.body as Record<string, unknown>;
    const email = typeof form.email === 'string' ? form.email : '';
    const password = typeof form.password === 'string' ? form.password : '';
    const result = await signIn(db, email, password, request.ip);
    if (result.outcome === 'signed-in') {
      await loginSessions.begin(request, reply, result.account.id);
      return reply.header('cache-control', 'no-store').redirect('/account', 303);
    }
    if (result.outcome === 'refused') {
      const message = 'The e-mail address or the password is not right.';
      return showSignIn(request, reply, { message, status: 422, email });
    }
    reply.header('retry-after', String(result.retryAfterSeconds));
    return showSignIn(request, reply, { message: 'Too many tries. Try again later.', status: 429, email });
  });

  app.post('/account/withdraw', async (request, reply) => {
    const { accountId, secret } = await loginSessions.find(request, reply);
    if (accountId === null) return reply.redirect('/account', 303);
    formTokens.check(request, accountContext(secret));
    const { client_id: clientId } = request.body as Record<string, unknown>;
    if (typeof clientId === 'string') {
      const ended = await withdrawGrantsOfClient(db, accountId, clientId);
      request.log.info(
        { account: accountId, client: clientId, grants: ended },
        'grants withdrawn by their user',
      );
    }
    return reply.header('cache-control', 'no-store').redirect('/account', 303);
  });

  function showSignIn(
    request: FastifyRequest,
    reply: FastifyReply,
    fault: { message?: string; status?: number; email?: string },
  ): FastifyReply {
    const own = readFormCookie(request) ?? randomBytes(24).toString('base64url');
    const secure = baseUrl.startsWith('https:') ? '; Secure' : '';
    reply.header('set-cookie', `${formCookie}=${own}; Path=/account; HttpOnly; SameSite=Strict${secure}`);
    const token = formTokens.make(signInContext(own));
    return sendPage(
      reply,
      fault.status ?? 200,
      'Sign in',
      signInContent(token, fault.email ?? '', fault.message),
    );
  }
}

function readFormCookie(request: FastifyRequest): string | undefined {
  return /(?:^|; )nuncio_form=([A-Za-z0-9_-]{32})(?:;|$)/.exec(request.headers.cookie ?? '')?.[1];
}

const signInContext = (own: string) => `account-sign-in\n${own}`;
const accountContext = (sessionSecret: string) => `account\n${sessionSecret}`;

function signInContent(token: string, email: string, message: string | undefined): Html {
  return html`<h1>Sign in</h1>
<p class="soft">to see which apps act for you</p>
${message !== undefined && html`<p class="error" role="alert" id="fault">${message}</p>`}
<form method="post" action="/account/sign-in">
<input type="hidden" name="${formTokenField}" value="${token}">
<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required value="${email}"
${message !== undefined && html`aria-describedby="fault"`}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button type="submit">Sign in</button>
</form>`;
}

function accountContent(account: Account, apps: ConnectedApp[], token: string, scopes: ScopeCatalogue): Html {
  return html`<h1>${account.name}</h1>
<p class="soft">${account.email}</p>
<h2>Connected apps</h2>
${
  apps.length === 0
    ? html`<p class="soft">No app acts for you.</p>`
    : html`<ul class="apps">${apps.map((app) => appContent(app, token, scopes))}</ul>`
}
<p><a href="/oauth/logout">Sign out</a></p>`;
}

function appContent(app: ConnectedApp, token: string, scopes: ScopeCatalogue): Html {
  const words = app.scopes.map(
    (name) => (scopes.get(name) ?? openidScopes.find((scope) => scope.name === name))?.description ?? name,
  );
  return html`<li>
<form method="post" action="/account/withdraw">
<input type="hidden" name="${formTokenField}" value="${token}">
<input type="hidden" name="client_id" value="${app.clientId}">
<strong>${app.name}</strong>
<button class="small danger" type="submit" aria-label="Withdraw what ${app.name} may do">Withdraw</button>
</form>
<p class="soft small">may ${words.join('; ')}</p>
<p class="soft small">since ${day(app.since)}, last used ${day(app.lastUsedAt)}</p>
</li>`;
}

function day(date: Date): string {
  return date.toISOString().slice(0, 10);
}
