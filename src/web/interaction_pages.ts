/**
 * Login and consent: what a user sees between an app's request and the answer to it. Works without JavaScript.
 *
 *   GET /interaction/<uid> → login → POST → (resumed) → consent → POST → (resumed) → back to the app
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { findAccount } from '../accounts/account.ts';
import { signIn } from '../accounts/sign_in.ts';
import type { Client } from '../clients/client.ts';
import type { ClientCache } from '../clients/client_cache.ts';
import { isLoopbackHost } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import { openidScopes, type Scope, type ScopeCatalogue } from '../grants/scopes.ts';
import { type FormTokens, formTokenField } from './form_token.ts';
import { type Html, html } from './html.ts';
import { sendPage } from './page.ts';

export interface InteractionPagesOptions {
  db: Database;
  provider: () => Provider;
  clients: ClientCache;
  scopes: ScopeCatalogue;
  formTokens: FormTokens;
}

type Interaction = Awaited<ReturnType<Provider['interactionDetails']>>;
type Result = Parameters<Provider['interactionResult']>[2];

const path = '/interaction/:uid';

export function registerInteractionPages(app: FastifyInstance, options: InteractionPagesOptions): void {
  const { db, provider, clients, scopes, formTokens } = options;

  app.get(path, async (request, reply) => {
    const interaction = await load(request, reply);
    if (interaction === undefined) return reply;
    return show(interaction, reply, {});
  });

  app.post(path, async (request, reply) => {
    const interaction = await load(request, reply);
    if (interaction === undefined) return reply;
    formTokens.check(request, tokenContext(interaction));
    const form = request.body as Record<string, unknown>;
    if (form.action === 'deny') {
      const refusal = { error: 'access_denied', error_description: 'the user refused' };
      return finish(request, reply, refusal);
    }
    if (interaction.prompt.name === 'login') return logIn(request, reply, interaction, form);
    if (form.action === 'allow') return finish(request, reply, { consent: {} });
    return show(interaction, reply, {});
  });

  async function load(request: FastifyRequest, reply: FastifyReply): Promise<Interaction | undefined> {
    const { uid } = request.params as { uid: string };
    try {
      const interaction = await provider().interactionDetails(request.raw, reply.raw);
      if (interaction.uid === uid) return interaction;
    } catch (error) {
      if ((error as Error).name !== 'SessionNotFound') throw error;
    }
    // The browser that began it has its cookie; nobody else can see or answer the question.
    sendPage(
      reply,
      400,
      'This page has expired',
      html`<h1>This page has expired</h1>
<p>Go back to the app that sent you here and start again.</p>
<p class="soft small">If it happens at once, your browser may refuse cookies.</p>`,
    );
    return undefined;
  }

  async function show(
    interaction: Interaction,
    reply: FastifyReply,
    fault: { message?: string; status?: number; email?: string },
  ): Promise<FastifyReply> {
    const clientId = String(interaction.params.client_id);
    const client = (await clients.find(clientId))?.client;
    const name = client?.name ?? clientId;
    const token = formTokens.make(tokenContext(interaction));
    const status = fault.status ?? 200;
    if (interaction.prompt.name === 'login') {
      const email = fault.email ?? String(interaction.params.login_hint ?? '');
      return sendPage(reply, status, 'Sign in', loginForm(name, token, email, fault.message));
    }
    const account = await findAccount(
      db,
      interaction.session?.accountId ?? '00000000-0000-0000-0000-000000000000',
    );
    const asked = String(interaction.params.scope ?? '')
      .split(' ')
      .filter(Boolean);
    const words = asked.map((scope) => describe(scope, scopes));
    const redirectUri = String(interaction.params.redirect_uri ?? '');
    const content = consentForm({
      client,
      name,
      token,
      email: account?.email ?? '',
      scopes: words,
      redirectUri,
    });
    return sendPage(reply, status, `Connect ${name}`, content);
  }

  async function logIn(
    request: FastifyRequest,
    reply: FastifyReply,
    interaction: Interaction,
    form: Record<string, unknown>,
  ): Promise<FastifyReply> {
    const email = typeof form.email === 'string' ? form.email : '';
    const password = typeof form.password === 'string' ? form.password : '';
    const result = await signIn(db, email, password, request.ip);
    if (result.outcome === 'signed-in') {
      request.log.info({ account: result.account.id }, 'signed in');
      return finish(request, reply, { login: { accountId: result.account.id } });
    }
    request.log.info({ outcome: result.outcome }, 'sign-in refused');
    if (result.outcome === 'refused') {
      const message = 'The e-mail address or the password is not right.';
      return show(interaction, reply, { message, status: 422, email });
    }
    reply.header('retry-after', String(result.retryAfterSeconds));
    const minutes = Math.ceil(result.retryAfterSeconds / 60);
    const message = `Too many tries. Try again in ${minutes} ${minutes === 1 ? 'minute' : 'minutes'}.`;
    return show(interaction, reply, { message, status: 429, email });
  }

  async function finish(request: FastifyRequest, reply: FastifyReply, result: Result): Promise<FastifyReply> {
    const returnTo = await provider().interactionResult(request.raw, reply.raw, result);
    return reply.header('cache-control', 'no-store').redirect(returnTo, 303);
  }
}

/** The question is part of it: the token of the login page does not confirm a consent. */
function tokenContext(interaction: Interaction): string {
  return `interaction\n${interaction.uid}\n${interaction.prompt.name}`;
}

function loginForm(name: string, token: string, email: string, message: string | undefined) {
  return html`<h1>Sign in</h1>
<p class="soft">to continue to <strong>${name}</strong></p>
${message !== undefined && html`<p class="error" role="alert" id="fault">${message}</p>`}
<form method="post" autocomplete="on">
<input type="hidden" name="${formTokenField}" value="${token}">
<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required value="${email}"
${email === '' && html`autofocus`} ${message !== undefined && html`aria-describedby="fault"`}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required
${email !== '' && html`autofocus`} ${message !== undefined && html`aria-describedby="fault"`}>
<button type="submit" name="action" value="login">Sign in</button>
</form>
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
<button class="secondary" type="submit" name="action" value="deny">Cancel</button>
</form>`;
}

interface ConsentContent {
  client: Client | undefined;
  name: string;
  token: string;
  email: string;
  scopes: Scope[];
  redirectUri: string;
}

function consentForm({ client, name, token, email, scopes, redirectUri }: ConsentContent) {
  const destination = describeRedirect(redirectUri);
  return html`<h1>Connect ${name}?</h1>
<p class="soft">Signed in as <strong>${email}</strong></p>
${describeOrigin(client)}
<p><strong>${name}</strong> would like to:</p>
<ul class="scopes">
${scopes.map((scope) => html`<li>${scope.description} <code class="soft">${scope.name}</code></li>`)}
</ul>
${
  destination.isLocal &&
  html`<p class="notice">This app runs on a computer, not on a website. Go on only if you have just started it
yourself.</p>`
}
<p class="soft small">You will be sent to <strong class="host">${destination.text}</strong>. You can withdraw this at
any time.</p>
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
<div class="choices">
<button type="submit" name="action" value="allow">Allow</button>
<button class="secondary" type="submit" name="action" value="deny">Deny</button>
</div>
</form>`;
}

/** By whose word the app is called what it is called. */
function describeOrigin(client: Client | undefined): Html | null {
  if (client === undefined || client.origin === 'operator') return null;
  if (client.origin === 'document') {
    return html`<p class="soft small">It comes from <strong class="host">${new URL(client.id).host}</strong>.</p>`;
  }
  return html`<p class="soft small">This app registered itself; its name is its own choice.</p>`;
}

function describe(name: string, catalogue: ScopeCatalogue): Scope {
  const known = catalogue.get(name) ?? openidScopes.find((scope) => scope.name === name);
  return known ?? { name, description: name, isForUsers: true };
}

/** Where the answer goes, in what a person can judge: a host, or the name of an installed app's scheme. */
function describeRedirect(redirectUri: string): { text: string; isLocal: boolean } {
  const url = URL.parse(redirectUri);
  if (url === null) return { text: 'this device', isLocal: false };
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    return { text: `an app on this device (${url.protocol})`, isLocal: true };
  }
  return { text: url.host, isLocal: isLoopbackHost(url.hostname) };
}
