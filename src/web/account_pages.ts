/** The account page: the user's connected apps, and how to disconnect them. Works without JavaScript. */

import { randomBytes } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { type Account, findAccount } from '../accounts/account.ts';
import {
  endLinkSession,
  findLinkSession,
  linkSessionSeconds,
  useAccountLink,
} from '../accounts/account_link.ts';
import type { KnownDevices } from '../accounts/known_device.ts';
import { signIn } from '../accounts/sign_in.ts';
import { isClientId } from '../clients/client.ts';
import type { Database } from '../database/database.ts';
import { withdrawGrantsOfClient } from '../grants/grant.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { readCookie } from '../http/cookie.ts';
import { type Html, html } from '../http/html.ts';
import type { Mailing } from '../notices/mailing.ts';
import { findWithdrawnApp } from '../oauth/connected_apps.ts';
import type { LoginSessions } from '../oauth/login_session.ts';
import type { EventRules } from '../webhooks/subscriptions/app_subscriptions.ts';
import { isFirst, placeUrl, readPlace } from './account_place.ts';
import { registerAgentSubscriptions } from './agent_subscription_pages.ts';
import { shownAppName } from './bounded.ts';
import { connectedAppsContent } from './connected_apps_page.ts';
import { failedConnections } from './failed_connections.ts';
import { type FormTokens, formTokenField } from './form_token.ts';
import type { HandedOverLogin } from './handed_over_login.ts';
import { noticesContent, registerAccountNotices } from './notice_pages.ts';
import { sendPage } from './page.ts';
import { type SignInFailure, signInFailure, signInFields, signInMessage } from './sign_in_form.ts';
import { connectionsContent, registerAccountUpstream } from './upstream/connections.ts';
import type { FinishOptions } from './upstream/finish_login.ts';
import { providerButtons } from './upstream/upstream_pages.ts';

export interface AccountPagesOptions {
  db: Database;
  scopes: ScopeCatalogue;
  formTokens: FormTokens;
  knownDevices: KnownDevices;
  loginSessions: LoginSessions;
  baseUrl: string;
  eventRules: EventRules;
  /** Null if users sign in on this server. */
  handedOver: HandedOverLogin | null;
  /** Null if no upstream providers are configured. */
  upstream: FinishOptions | null;
  mailing: Mailing;
}

/** A cookie that only the account page uses. */
interface PageCookie {
  name: string;
  attributes: string;
}

/** Under https, the prefix prevents sibling hosts from setting the cookie (draft-ietf-httpbis-rfc6265bis section 4.1.3.2). */
function pageCookie(baseUrl: string, name: string, attributes: string): PageCookie {
  const shared = `HttpOnly; ${attributes}`;
  return baseUrl.startsWith('https:')
    ? { name: `__Host-nuncio_${name}`, attributes: `Path=/; ${shared}; Secure` }
    : { name: `nuncio_${name}`, attributes: `Path=/account; ${shared}` };
}

export function registerAccountPages(app: FastifyInstance, options: AccountPagesOptions): void {
  const { db, formTokens, loginSessions, handedOver, upstream } = options;
  // Binds the sign-in form to a browser that has no session yet.
  const formCookie = pageCookie(options.baseUrl, 'form', 'SameSite=Strict');
  // The session of a link from the application (account_link.ts). Lax: the browser comes from another site.
  const linkCookie = pageCookie(options.baseUrl, 'link', `SameSite=Lax; Max-Age=${linkSessionSeconds}`);

  // HEAD would begin a sign-in at the application.
  app.get('/account', { exposeHeadRoute: handedOver === null }, async (request, reply) => {
    const session = await findSession(request, reply);
    if (session === undefined) {
      return handedOver === null
        ? showSignIn(request, reply, options, formCookie, {})
        : handedOver.begin(request, reply, accountPageLogin);
    }
    const { account, secret, returnTo, isLink } = session;
    const token = formTokens.make(accountContext(secret));
    const { withdrawn } = request.query as Record<string, unknown>;
    const ended = isClientIdText(withdrawn) ? await findWithdrawnApp(db, account.id, withdrawn) : undefined;
    const wanted = readPlace(request.query);
    const { place, content: apps } = await connectedAppsContent(options, account.id, wanted, token);
    const others = isFirst(place) && (await otherSections(request, options, session, token));
    const own = { account, apps, ended, token, returnTo, isLink, others };
    return sendPage(reply, 200, 'Your account', accountContent(own));
  });

  if (handedOver === null) registerSignIn(app, options, formCookie);
  else registerContinue(app, options, handedOver);
  registerAccountUpstream(app, upstream, loginSessions, accountContext, async (request, reply) => {
    const session = await findSession(request, reply);
    return session?.isLink === false ? session : undefined;
  });

  registerAccountNotices(app, options, accountContext, findSession);
  registerAgentSubscriptions(app, { db, formTokens, contextOf: accountContext, findSession });
  registerLink(app, db, linkCookie);

  app.post('/account/leave', async (request, reply) => {
    const secret = readSecret(request, linkCookie);
    let returnTo: string | null = null;
    if (secret !== undefined) {
      formTokens.check(request, accountContext(secret));
      returnTo = (await findLinkSession(db, secret))?.returnTo ?? null;
      await endLinkSession(db, secret);
      reply.header(
        'set-cookie',
        `${linkCookie.name}=; ${linkCookie.attributes.replace(/Max-Age=\d+/, 'Max-Age=0')}`,
      );
    }
    // The account page would send a signed-out user to the application, which would sign them in again.
    if (handedOver !== null && (await findSession(request, reply)) === undefined) {
      return sendPage(reply, 200, 'You have left your account', leftContent(returnTo));
    }
    return reply.header('cache-control', 'no-store').redirect('/account', 303);
  });

  app.post('/account/withdraw', async (request, reply) => {
    const session = await findSession(request, reply);
    if (session === undefined) {
      return handedOver === null
        ? reply.redirect('/account', 303)
        : sendPage(reply, 400, 'This page has expired', expiredContent());
    }
    const { secret } = session;
    const accountId = session.account.id;
    formTokens.check(request, accountContext(secret));
    const { client_id: clientId } = request.body as Record<string, unknown>;
    const place = readPlace(request.body);
    let shown = placeUrl(place);
    if (isClientIdText(clientId)) {
      const ended = await withdrawGrantsOfClient(db, accountId, clientId);
      if (ended > 0) {
        request.log.info(
          { account: accountId, client: clientId, grants: ended },
          'grants withdrawn by their user',
        );
      }
      shown = placeUrl(place, { withdrawn: clientId });
    }
    return reply.header('cache-control', 'no-store').redirect(shown, 303);
  });

  /** A link session takes precedence over the login session: it is newer. */
  async function findSession(request: FastifyRequest, reply: FastifyReply): Promise<PageSession | undefined> {
    const linkSecret = readSecret(request, linkCookie);
    const link = linkSecret === undefined ? undefined : await findLinkSession(db, linkSecret);
    if (link !== undefined && linkSecret !== undefined) return { ...link, secret: linkSecret, isLink: true };
    const { accountId, secret } = await loginSessions.find(request, reply);
    const account = accountId === null ? undefined : await findAccount(db, accountId);
    return account && { account, secret, returnTo: null, isLink: false };
  }
}

/** What only the first page of the account shows. */
async function otherSections(
  request: FastifyRequest,
  { db, upstream, mailing }: AccountPagesOptions,
  { account, isLink }: PageSession,
  token: string,
): Promise<Html> {
  const { notices: saved } = request.query as Record<string, unknown>;
  const failed = await failedConnections(db, account.id);
  // The session of a link is limited to this page: it must not connect a way to sign in.
  const connections = !isLink && (await connectionsContent(upstream, account.id, token));
  const notices = mailing.sendsMail && (await noticesContent(db, account, token, saved === 'saved'));
  return html`${failed}\n${connections}\n${notices}`;
}

/** Opening the account page with a link from the application. */
function registerLink(app: FastifyInstance, db: Database, linkCookie: PageCookie): void {
  // HEAD and prefetching would consume the link.
  app.get('/account/link', { exposeHeadRoute: false }, async (request, reply) => {
    const { code } = request.query as Record<string, unknown>;
    const isAhead = /prefetch|prerender/i.test(String(request.headers['sec-purpose'] ?? ''));
    const secret = !isAhead && typeof code === 'string' ? await useAccountLink(db, code) : undefined;
    if (secret === undefined) return sendPage(reply, 400, 'This link has expired', usedLinkContent());
    const before = readSecret(request, linkCookie);
    if (before !== undefined) await endLinkSession(db, before);
    reply.header('set-cookie', `${linkCookie.name}=${secret}; ${linkCookie.attributes}`);
    return reply
      .headers({ 'cache-control': 'no-store', 'referrer-policy': 'no-referrer' })
      .redirect('/account', 303);
  });
}

/** Sign-in at the account page with a password. */
function registerSignIn(app: FastifyInstance, options: AccountPagesOptions, formCookie: PageCookie): void {
  const { db, formTokens, knownDevices, loginSessions, upstream } = options;
  app.post('/account/sign-in', async (request, reply) => {
    formTokens.check(request, signInContext(readSecret(request, formCookie) ?? ''));
    const form = request.body as Record<string, unknown>;
    if (form.action === 'upstream' && upstream !== null) {
      return upstream.flow.begin(request, reply, form.provider, {
        interactionUid: null,
        accountId: null,
        hints: { loginHint: null, prompt: [], maxAgeSeconds: null },
      });
    }
    const email = typeof form.email === 'string' ? form.email : '';
    const password = typeof form.password === 'string' ? form.password : '';
    const device = knownDevices.read(request.headers.cookie);
    const result = await signIn(db, email, password, request.ip, device);
    if (result.outcome === 'signed-in') {
      const { account, signInEpoch } = result;
      await loginSessions.begin(request, reply, { accountId: account.id, signInEpoch });
      // Appended to the session cookie, which oidc-provider has already set.
      if (result.deviceCookie !== undefined) reply.raw.appendHeader('set-cookie', result.deviceCookie);
      return reply.header('cache-control', 'no-store').redirect('/account', 303);
    }
    return showSignIn(request, reply, options, formCookie, signInFailure(result, email, reply));
  });
}

/** Sign-in at the account page through the application. */
function registerContinue(
  app: FastifyInstance,
  { loginSessions }: AccountPagesOptions,
  handedOver: HandedOverLogin,
): void {
  app.get('/account/continue', { exposeHeadRoute: false }, async (request, reply) => {
    const result = await handedOver.finish(request, reply, null);
    if (result === undefined) return reply;
    if (result.accountId === null) return sendPage(reply, 403, 'You are not signed in', refusedContent());
    const { accountId, signInEpoch, authTime, amr, acr } = result;
    await loginSessions.begin(request, reply, { accountId, signInEpoch, authTime, amr, acr });
    return reply
      .headers({ 'cache-control': 'no-store', 'referrer-policy': 'no-referrer' })
      .redirect('/account', 303);
  });
}

/** A sign-in for the account page, without an authorization request. */
const accountPageLogin = {
  interactionUid: null,
  clientId: null,
  parameters: { scopes: [], loginHint: null, prompt: null, acrValues: [], maxAge: null },
};

function refusedContent(): Html {
  return html`<h1>You are not signed in</h1>
<p>The sign-in was canceled or refused. <a href="/account">Try again</a></p>`;
}

function showSignIn(
  request: FastifyRequest,
  reply: FastifyReply,
  { formTokens, upstream }: AccountPagesOptions,
  formCookie: PageCookie,
  failure: Partial<SignInFailure>,
): FastifyReply {
  const own = readSecret(request, formCookie) ?? randomBytes(24).toString('base64url');
  reply.header('set-cookie', `${formCookie.name}=${own}; ${formCookie.attributes}`);
  const token = formTokens.make(signInContext(own));
  const buttons = providerButtons(upstream?.flow.providers ?? [], token, '/account/sign-in');
  const content = signInContent(token, failure.email ?? '', failure.message, buttons);
  return sendPage(reply, failure.status ?? 200, 'Sign in', content);
}

interface PageSession {
  account: Account;
  /** A secret of this browser and the server. Forms are bound to it. */
  secret: string;
  /** The application's page to go back to. */
  returnTo: string | null;
  /** Whether the session comes from an account link. The browser then has no login session. */
  isLink: boolean;
}

function readSecret(request: FastifyRequest, { name }: PageCookie): string | undefined {
  const value = readCookie(request.headers.cookie, name);
  return value !== undefined && /^[A-Za-z0-9_-]{32,43}$/.test(value) ? value : undefined;
}

/** Whether the value is a single string that the database can store. */
function isClientIdText(value: unknown): value is string {
  return typeof value === 'string' && isClientId(value);
}

const signInContext = (own: string) => `account-sign-in\n${own}`;
const accountContext = (sessionSecret: string) => `account\n${sessionSecret}`;

function signInContent(
  token: string,
  email: string,
  message: string | undefined,
  buttons: Html | false,
): Html {
  return html`<h1>Sign in</h1>
<p class="soft">to manage your connected apps</p>
${buttons}
${signInMessage(message)}
<form method="post" action="/account/sign-in">
<input type="hidden" name="${formTokenField}" value="${token}">
${signInFields(email, message)}
<button type="submit">Sign in</button>
</form>`;
}

interface AccountContent {
  account: Account;
  apps: Html;
  /** The name of an app that was just disconnected. */
  ended: string | undefined;
  token: string;
  returnTo: string | null;
  isLink: boolean;
  /** Apps that could not finish connecting, the providers that sign in to the account, and the mails that it gets. */
  others: Html | false;
}

function usedLinkContent(): Html {
  return html`<h1>This link has expired</h1>
<p>A link to your account works once, within a minute. Go back to the previous page and open your account again.</p>`;
}

function leftContent(returnTo: string | null): Html {
  return html`<h1>You have left your account</h1>
<p>This browser no longer shows your account.</p>
${backLink(returnTo)}`;
}

function expiredContent(): Html {
  return html`<h1>This page has expired</h1>
<p>Nothing was changed. Go back to the previous page and open your account again.</p>`;
}

function backLink(returnTo: string | null): Html | false {
  if (returnTo === null) return false;
  const back = new URL(returnTo);
  return html`<p><a href="${back.href}" rel="noreferrer">Back to ${back.host}</a></p>`;
}

function accountContent(shown: AccountContent): Html {
  const { account, apps, ended, others } = shown;
  return html`<h1>${nameOfAccount(account)}</h1>
${account.email !== null && account.name !== '' && html`<p class="soft">${account.email}</p>`}
${ended !== undefined && html`<p class="notice" role="status"><strong>${shownAppName(ended)}</strong> is disconnected.</p>`}
${apps}
${others}
${wayOut(shown)}`;
}

/** The account's name, or else its email address. */
export function nameOfAccount({ name, email }: Pick<Account, 'name' | 'email'>): string {
  return name || email || 'Your account';
}

function wayOut({ returnTo, isLink, token }: AccountContent): Html {
  if (!isLink) return html`<p><a href="/oauth/logout">Sign out</a></p>`;
  return html`${backLink(returnTo)}
<form method="post" action="/account/leave">
<input type="hidden" name="${formTokenField}" value="${token}">
<button class="secondary" type="submit">Leave account</button>
</form>`;
}
