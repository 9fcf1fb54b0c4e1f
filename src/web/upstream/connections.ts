/**
 * Upstream providers on the account page: lists, connects and disconnects the identities of the account. Requires a login
 * session; the session of an account link is not enough.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { type Account, hasPassword, signInEpochOf } from '../../accounts/account.ts';
import { signIn } from '../../accounts/sign_in.ts';
import {
  type ConnectedIdentity,
  disconnectIdentity,
  includesIssuer,
  listIdentities,
} from '../../accounts/upstream/identity.ts';
import type { UpstreamProvider } from '../../accounts/upstream/provider_settings.ts';
import { connectLogin } from '../../accounts/upstream/resolution.ts';
import { type Html, html } from '../../http/html.ts';
import { isStorable } from '../../http/json.ts';
import type { LoginSessions } from '../../oauth/login_session.ts';
import { shortened } from '../bounded.ts';
import { formTokenField } from '../form_token.ts';
import { sendPage } from '../page.ts';
import { type SignInFailure, signInFailure } from '../sign_in_form.ts';
import { type FinishOptions, finishContext, registerFinish, toPendingLogin } from './finish_login.ts';
import type { WaitingLogin } from './upstream_flow.ts';
import { connectContent, refusalContent, unfinishedContent } from './upstream_pages.ts';

/** The account of the page, and the secret that binds its forms. */
interface PageOwner {
  account: Account;
  secret: string;
}

type FindOwner = (request: FastifyRequest, reply: FastifyReply) => Promise<PageOwner | undefined>;

/**
 * Registers sign-in with a provider at the account page, and the routes that connect and disconnect identities.
 * @param upstream null if no providers are configured
 * @param contextOf the context of the account page's form tokens
 * @param findOwner finds the account of the browser's login session
 */
export function registerAccountUpstream(
  app: FastifyInstance,
  upstream: FinishOptions | null,
  loginSessions: LoginSessions,
  contextOf: (secret: string) => string,
  findOwner: FindOwner,
): void {
  if (upstream === null) return;
  registerConnections(app, upstream, contextOf, findOwner);
  const connect = createConnect(upstream, findOwner);
  registerFinish(app, '/account/upstream', upstream, async () => ({
    interactionUid: null,
    back: '/account',
    connect,
    async signedIn(request, reply, { accountId, signInEpoch, authTime, deviceCookie }) {
      await loginSessions.begin(request, reply, {
        accountId,
        signInEpoch,
        ...(authTime === null ? {} : { authTime, acr: null }),
      });
      // The session cookie is already set on the raw response. A header set through Fastify would replace it.
      if (deviceCookie !== undefined) reply.raw.appendHeader('set-cookie', deviceCookie);
      return toAccount(reply);
    },
  }));
}

function registerConnections(
  app: FastifyInstance,
  { db, flow, formTokens }: FinishOptions,
  contextOf: (secret: string) => string,
  findOwner: FindOwner,
): void {
  app.post('/account/connect', async (request, reply) => {
    const owner = await findOwner(request, reply);
    if (owner === undefined) return toAccount(reply);
    formTokens.check(request, contextOf(owner.secret));
    const { provider } = request.body as Record<string, unknown>;
    return flow.begin(request, reply, provider, {
      interactionUid: null,
      accountId: owner.account.id,
      hints: { loginHint: null, prompt: ['select_account'], maxAgeSeconds: null },
    });
  });

  app.post('/account/disconnect', async (request, reply) => {
    const owner = await findOwner(request, reply);
    if (owner === undefined) return toAccount(reply);
    formTokens.check(request, contextOf(owner.secret));
    const { issuer, subject } = request.body as Record<string, unknown>;
    if (!isText(issuer) || !isText(subject)) return toAccount(reply);
    const configured = flow.providers.map((provider) => provider.issuer);
    const outcome = await db
      .transaction()
      .execute((tx) => disconnectIdentity(tx, owner.account.id, { issuer, subject }, configured));
    request.log.info({ account: owner.account.id, outcome }, 'identity disconnected by the user');
    if (outcome === 'last-way') return sendPage(reply, 409, 'Not disconnected', lastWayContent);
    return toAccount(reply);
  });
}

/**
 * Connects the verified identity to the signed-in account. The user confirms the identity, and enters the password of the
 * account if it has one.
 */
function createConnect({ db, formTokens, knownDevices }: FinishOptions, findOwner: FindOwner) {
  return async (
    request: FastifyRequest,
    reply: FastifyReply,
    waiting: WaitingLogin,
  ): Promise<FastifyReply> => {
    // Read before the session, which may end at any time.
    const signInEpoch = await signInEpochOf(db, waiting.login.accountId as string);
    const owner = await findOwner(request, reply);
    // Another user has signed in to this browser since the sign-in began.
    if (owner === undefined || signInEpoch === undefined || owner.account.id !== waiting.login.accountId) {
      return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
    }
    const { account } = owner;
    const needsPassword = account.email !== null && (await hasPassword(db, account.id));
    const ask = (failure: Partial<SignInFailure>) => {
      const content = connectContent({
        token: formTokens.make(finishContext(waiting)),
        provider: waiting.provider.name,
        label: waiting.login.identity.label,
        account: account.email ?? account.name,
        hasPassword: needsPassword,
        failure,
      });
      return sendPage(reply, failure.status ?? 200, `Connect ${waiting.provider.name}`, content);
    };
    const form = (request.body ?? {}) as Record<string, unknown>;
    if (request.method !== 'POST' || form.action !== 'connect') return ask({});
    if (needsPassword) {
      const password = typeof form.password === 'string' ? form.password : '';
      const device = knownDevices.read(request.headers.cookie);
      const result = await signIn(db, account.email ?? '', password, request.ip, device);
      if (result.outcome !== 'signed-in') return ask(passwordFailure(signInFailure(result, '', reply)));
      if (result.account.id !== account.id) return ask({});
    }
    const resolution = await connectLogin(db, toPendingLogin(waiting), account.id, signInEpoch);
    switch (resolution.outcome) {
      case 'signed-in':
        request.log.info(
          { account: account.id, provider: waiting.provider.id },
          'identity connected by the user',
        );
        return toAccount(reply);
      case 'too-many':
      case 'of-another-account':
      case 'disabled': {
        const content = refusalContent(resolution.outcome, waiting.provider.name, '/account', true);
        return sendPage(reply, 409, 'Not connected', content);
      }
      default:
        return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
    }
  };
}

/** Removes the email address from the message, because the page does not ask for one. */
function passwordFailure(failure: SignInFailure): SignInFailure {
  return failure.status === 422 ? { ...failure, message: 'Incorrect password.' } : failure;
}

/** The section of the account page. @param token the form token of the account page */
export async function connectionsContent(
  upstream: FinishOptions | null,
  accountId: string,
  token: string,
): Promise<Html | false> {
  if (upstream === null) return false;
  const { providers } = upstream.flow;
  const identities = await listIdentities(upstream.db, accountId);
  return html`<h2>Sign-in</h2>
${
  identities.length > 0 &&
  html`<ul class="apps">${identities.map((identity) => identityContent(identity, providers, token))}</ul>`
}
<form class="providers" method="post" action="/account/connect">
<input type="hidden" name="${formTokenField}" value="${token}">
${providers.map(
  ({ id, name, issuer }) =>
    html`<button class="secondary" type="submit" name="provider" value="${id}">Connect ${
      identities.some((each) => includesIssuer(each.issuer, [issuer])) ? html`another ${name} account` : name
    }</button>`,
)}
</form>`;
}

/** Maximum characters of a shown label, which the provider chose. */
const labelCharactersMax = 80;

function identityContent(
  { issuer, subject, label: chosen }: ConnectedIdentity,
  providers: readonly UpstreamProvider[],
  token: string,
): Html {
  const name = providers.find((each) => includesIssuer(issuer, [each.issuer]))?.name ?? issuer;
  const label = shortened(chosen, labelCharactersMax);
  return html`<li>
<strong>${name}</strong>
<p class="soft small">${label}</p>
<details>
<summary class="small" aria-label="Disconnect ${name}, ${label}">Disconnect</summary>
<p class="small">You will no longer be able to sign in here with this ${name} account.</p>
<form method="post" action="/account/disconnect">
<input type="hidden" name="${formTokenField}" value="${token}">
<input type="hidden" name="issuer" value="${issuer}">
<input type="hidden" name="subject" value="${subject}">
<button class="danger" type="submit">Disconnect ${name}</button>
</form>
</details>
</li>`;
}

const lastWayContent = html`<h1>Not disconnected</h1>
<p class="error" role="alert">This is the only way to sign in to your account. Connect another provider first.</p>
<p><a href="/account">Back to your account</a></p>`;

function toAccount(reply: FastifyReply): FastifyReply {
  return reply.header('cache-control', 'no-store').redirect('/account', 303);
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && isStorable(value);
}
