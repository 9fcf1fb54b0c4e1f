/**
 * The user's own page: who they are here, which apps act for them, and the button that ends that. Works without
 * JavaScript.
 */

import { randomBytes } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { type Account, findAccount } from '../accounts/account.ts';
import type { KnownDevices } from '../accounts/known_device.ts';
import { signIn } from '../accounts/sign_in.ts';
import type { Database } from '../database/database.ts';
import { withdrawGrantsOfClient } from '../grants/grant.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { isStorable } from '../http/json.ts';
import { type ConnectedApp, findWithdrawnApp, listConnectedApps } from '../oauth/connected_apps.ts';
import type { LoginSessions } from '../oauth/login_session.ts';
import { describeScope } from './consent_page.ts';
import { type FormTokens, formTokenField } from './form_token.ts';
import { type Html, html } from './html.ts';
import { logoImage } from './logos.ts';
import { sendPage } from './page.ts';
import { type SignInFault, signInFault, signInFields, signInMessage } from './sign_in_form.ts';

export interface AccountPagesOptions {
  db: Database;
  scopes: ScopeCatalogue;
  formTokens: FormTokens;
  knownDevices: KnownDevices;
  loginSessions: LoginSessions;
  baseUrl: string;
}

/** The cookie that holds a browser's own value for the login form, where it has no session yet. */
interface FormCookie {
  name: string;
  attributes: string;
}

/** Under https its name keeps hosts beside this one from setting it (draft-ietf-httpbis-rfc6265bis section 4.1.3.2). */
function formCookieOf(baseUrl: string): FormCookie {
  const shared = 'HttpOnly; SameSite=Strict';
  return baseUrl.startsWith('https:')
    ? { name: '__Host-nuncio_form', attributes: `Path=/; ${shared}; Secure` }
    : { name: 'nuncio_form', attributes: `Path=/account; ${shared}` };
}

export function registerAccountPages(app: FastifyInstance, options: AccountPagesOptions): void {
  const { db, scopes, formTokens, knownDevices, loginSessions } = options;
  const formCookie = formCookieOf(options.baseUrl);

  app.get('/account', async (request, reply) => {
    const { accountId, secret } = await loginSessions.find(request, reply);
    const account = accountId === null ? undefined : await findAccount(db, accountId);
    if (account === undefined) return showSignIn(request, reply, {});
    const apps = await listConnectedApps(db, account.id);
    const token = formTokens.make(accountContext(secret));
    const { withdrawn } = request.query as Record<string, unknown>;
    const ended = isText(withdrawn) ? await findWithdrawnApp(db, account.id, withdrawn) : undefined;
    const content = accountContent({ account, apps, ended, token, scopes });
    return sendPage(reply, 200, 'Your account', content);
  });

  app.post('/account/sign-in', async (request, reply) => {
    formTokens.check(request, signInContext(readFormCookie(request, formCookie) ?? ''));
    const form = request.body as Record<string, unknown>;
    const email = typeof form.email === 'string' ? form.email : '';
    const password = typeof form.password === 'string' ? form.password : '';
    const device = knownDevices.read(request.headers.cookie);
    const result = await signIn(db, email, password, request.ip, device);
    if (result.outcome === 'signed-in') {
      await loginSessions.begin(request, reply, result.account.id);
      // Beside the session's cookie, which the engine has set already.
      if (result.deviceCookie !== undefined) reply.raw.appendHeader('set-cookie', result.deviceCookie);
      return reply.header('cache-control', 'no-store').redirect('/account', 303);
    }
    return showSignIn(request, reply, signInFault(result, email, reply));
  });

  app.post('/account/withdraw', async (request, reply) => {
    const { accountId, secret } = await loginSessions.find(request, reply);
    if (accountId === null) return reply.redirect('/account', 303);
    formTokens.check(request, accountContext(secret));
    const { client_id: clientId } = request.body as Record<string, unknown>;
    let shown = '/account';
    if (isText(clientId)) {
      const ended = await withdrawGrantsOfClient(db, accountId, clientId);
      request.log.info(
        { account: accountId, client: clientId, grants: ended },
        'grants withdrawn by their user',
      );
      shown += `?${new URLSearchParams({ withdrawn: clientId })}`;
    }
    return reply.header('cache-control', 'no-store').redirect(shown, 303);
  });

  function showSignIn(
    request: FastifyRequest,
    reply: FastifyReply,
    fault: Partial<SignInFault>,
  ): FastifyReply {
    const own = readFormCookie(request, formCookie) ?? randomBytes(24).toString('base64url');
    reply.header('set-cookie', `${formCookie.name}=${own}; ${formCookie.attributes}`);
    const token = formTokens.make(signInContext(own));
    return sendPage(
      reply,
      fault.status ?? 200,
      'Sign in',
      signInContent(token, fault.email ?? '', fault.message),
    );
  }
}

function readFormCookie(request: FastifyRequest, { name }: FormCookie): string | undefined {
  const pairs = (request.headers.cookie ?? '').split('; ');
  const value = pairs.find((pair) => pair.startsWith(`${name}=`))?.slice(name.length + 1);
  return value !== undefined && /^[A-Za-z0-9_-]{32}$/.test(value) ? value : undefined;
}

/** Whether it is one text that the database can be asked for: there may be none of it, or several, or a NUL in it. */
function isText(value: unknown): value is string {
  return typeof value === 'string' && isStorable(value);
}

const signInContext = (own: string) => `account-sign-in\n${own}`;
const accountContext = (sessionSecret: string) => `account\n${sessionSecret}`;

function signInContent(token: string, email: string, message: string | undefined): Html {
  return html`<h1>Sign in</h1>
<p class="soft">to see which apps act for you</p>
${signInMessage(message)}
<form method="post" action="/account/sign-in">
<input type="hidden" name="${formTokenField}" value="${token}">
${signInFields(email, message)}
<button type="submit">Sign in</button>
</form>`;
}

interface AccountContent {
  account: Account;
  apps: ConnectedApp[];
  /** The name of an app that has just been stopped. */
  ended: string | undefined;
  token: string;
  scopes: ScopeCatalogue;
}

function accountContent({ account, apps, ended, token, scopes }: AccountContent): Html {
  return html`<h1>${account.name}</h1>
<p class="soft">${account.email}</p>
${ended !== undefined && html`<p class="notice" role="status"><strong>${ended}</strong> no longer acts for you.</p>`}
<h2>Connected apps</h2>
${
  apps.length === 0
    ? html`<p class="soft">No app acts for you.</p>`
    : html`<ul class="apps">${apps.map((app) => appContent(app, token, scopes))}</ul>`
}
<p><a href="/oauth/logout">Sign out</a></p>`;
}

/** To withdraw takes two steps: nothing brings back the subscriptions that end with it. */
function appContent(app: ConnectedApp, token: string, scopes: ScopeCatalogue): Html {
  return html`<li>
<div class="app-name">${logoImage(app.logo)}<strong>${app.name}</strong></div>
<p class="soft small">Since ${day(app.since)}, last used ${day(app.lastUsedAt)}</p>
<p class="small">This app may:</p>
<ul class="may small">${app.scopes.map((name) => html`<li>${describeScope(name, scopes).description}</li>`)}</ul>
<details>
<summary class="small" aria-label="Withdraw what ${app.name} may do">Withdraw</summary>
<p class="small">The app loses access at once and receives no more events. It keeps what it has already received.</p>
<form method="post" action="/account/withdraw">
<input type="hidden" name="${formTokenField}" value="${token}">
<input type="hidden" name="client_id" value="${app.clientId}">
<button class="danger" type="submit">Withdraw from ${app.name}</button>
</form>
</details>
</li>`;
}

const dayFormat = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeZone: 'UTC' });

function day(date: Date): Html {
  return html`<time datetime="${date.toISOString().slice(0, 10)}">${dayFormat.format(date)}</time>`;
}
