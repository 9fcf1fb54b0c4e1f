/**
 * Login and consent: the pages between an app's authorization request and its response. They work without JavaScript.
 *
 *   GET /interaction/<uid> → login → POST → (resumed) → consent → POST → (resumed) → back to the app
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { findAccount } from '../accounts/account.ts';
import type { KnownDevices } from '../accounts/known_device.ts';
import type { NewLoginRequest } from '../accounts/login_request.ts';
import { signIn } from '../accounts/sign_in.ts';
import { findClient } from '../clients/client.ts';
import type { ClientCache } from '../clients/client_cache.ts';
import type { Database } from '../database/database.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { type Html, html } from '../http/html.ts';
import { passwordAcr } from '../oauth/authentication_context.ts';
import type { SubmittedConsent } from '../oauth/grant_policy.ts';
import type { SubmitInteraction } from '../oauth/interaction_binding.ts';
import { withoutAdminScope } from '../oauth/scope_policy.ts';
import type { OAuthSettings } from '../oauth/settings.ts';
import { type EventRules, mayReceiveEvents } from '../webhooks/subscriptions/app_subscriptions.ts';
import { nameOfAccount } from './account_pages.ts';
import { consentForm, describeScope, descriptionDigest, requestedApis } from './consent_page.ts';
import { renderExpiredPage } from './error_page.ts';
import { type FormTokens, formTokenField } from './form_token.ts';
import type { HandedOverLogin } from './handed_over_login.ts';
import { pageHeaders, sendPage } from './page.ts';
import { type SignInFailure, signInFailure, signInFields, signInMessage } from './sign_in_form.ts';
import { lostPage, refusedForm, refusedPassword, type SignInTrace } from './sign_in_trace.ts';
import { type FinishOptions, registerFinish } from './upstream/finish_login.ts';
import { providerButtons } from './upstream/upstream_pages.ts';

export interface InteractionPagesOptions {
  db: Database;
  provider: () => Provider;
  clients: ClientCache;
  scopes: ScopeCatalogue;
  formTokens: FormTokens;
  knownDevices: KnownDevices;
  submitInteraction: SubmitInteraction;
  /** Where the pages report what they refuse. */
  signInTrace: SignInTrace;
  baseUrl: string;
  eventRules: EventRules;
  /** Other APIs that the operator declared. */
  resources: OAuthSettings['resources'];
  /** Null if users sign in on this server. */
  handedOver: HandedOverLogin | null;
  /** Null if no upstream providers are configured. */
  upstream: FinishOptions | null;
}

type Interaction = Awaited<ReturnType<Provider['interactionDetails']>>;
type Result = Parameters<SubmitInteraction>[2];

const path = '/interaction/:uid';

// biome-ignore lint/complexity/noExcessiveLinesPerFunction: short routes and steps that share the options
export function registerInteractionPages(app: FastifyInstance, options: InteractionPagesOptions): void {
  const { db, provider, clients, scopes, formTokens, knownDevices, submitInteraction, baseUrl } = options;
  const { handedOver, upstream, signInTrace } = options;

  // HEAD would begin a sign-in at the application.
  app.get(path, { exposeHeadRoute: handedOver === null }, async (request, reply) => {
    const interaction = await load(request, reply);
    if (interaction === undefined) return reply;
    if (interaction.prompt.name === 'login' && handedOver !== null) {
      const refusal = unmetBySignIn(interaction);
      if (refusal !== null) return finish(request, reply, refusal);
      return handedOver.begin(request, reply, loginRequestOf(interaction, interaction.params.prompt));
    }
    return show(interaction, reply);
  });

  if (handedOver !== null) {
    // HEAD would consume the result.
    app.get(`${path}/continue`, { exposeHeadRoute: false }, async (request, reply) => {
      const interaction = await load(request, reply);
      if (interaction === undefined) return reply;
      const result = await handedOver.finish(request, reply, interaction.uid);
      if (result === undefined) {
        signInTrace.refused(request, interaction, lostPage(false));
        return reply;
      }
      if (result.accountId === null) {
        const { error, description } = result;
        return finish(request, reply, {
          error,
          error_description: description ?? 'the sign-in was refused',
        });
      }
      const { accountId, signInEpoch, authTime, amr, acr } = result;
      request.log.info({ account: accountId }, 'signed in by the application');
      const how = { ...(amr === null ? {} : { amr }), ...(acr === null ? {} : { acr }) };
      const login = { accountId, signInEpoch, ts: authTime, ...how };
      return finish(request, reply, { login, consent: undefined });
    });
  }

  if (upstream !== null) {
    registerFinish(app, `${path}/upstream`, upstream, async (request, reply) => {
      const interaction = await load(request, reply);
      return (
        interaction && {
          interactionUid: interaction.uid,
          back: `/interaction/${interaction.uid}`,
          refused: (at, refusal) => signInTrace.refused(at, interaction, refusal),
          signedIn: (at, response, { accountId, signInEpoch, authTime, deviceCookie }) => {
            if (deviceCookie !== undefined) response.header('set-cookie', deviceCookie);
            const how = authTime === null ? { acr: passwordAcr(baseUrl) } : { ts: authTime };
            return finish(at, response, { login: { accountId, signInEpoch, ...how }, consent: undefined });
          },
        }
      );
    });
  }

  app.post(path, async (request, reply) => {
    const interaction = await load(request, reply);
    if (interaction === undefined) return reply;
    checkForm(request, interaction);
    const form = request.body as Record<string, unknown>;
    if (form.action === 'deny') {
      const refusal = { error: 'access_denied', error_description: 'the user denied access' };
      return finish(request, reply, refusal);
    }
    // Also on the consent page, where another user than the signed-in one may want to sign in.
    if (form.action === 'login' && handedOver === null) return logIn(request, reply, interaction, form);
    if (form.action === 'upstream' && upstream !== null) {
      const { interactionUid, parameters: asked } = loginRequestOf(
        interaction,
        interaction.prompt.name === 'login' ? interaction.params.prompt : 'select_account',
      );
      const { loginHint, maxAge: maxAgeSeconds } = asked;
      const prompt = asked.prompt?.split(' ') ?? [];
      return upstream.flow.begin(request, reply, form.provider, {
        interactionUid,
        accountId: null,
        hints: { loginHint, prompt, maxAgeSeconds },
        refused: (refusal) => signInTrace.refused(request, interaction, refusal),
      });
    }
    if (form.action === 'switch') {
      return handedOver === null
        ? showLogin(interaction, reply, {})
        : handedOver.begin(request, reply, loginRequestOf(interaction, 'select_account'));
    }
    if (form.action === 'allow' && interaction.prompt.name === 'consent') {
      const client = await findClient(db, String(interaction.params.client_id));
      if (client === undefined || form.seen !== descriptionDigest(client))
        return show(interaction, reply, true);
      const clientVersion = client.updatedAt.toISOString();
      const consent: SubmittedConsent = { accountId: interaction.session?.accountId, clientVersion };
      return finish(request, reply, { consent });
    }
    return show(interaction, reply);
  });

  /** @throws Problem 403 */
  function checkForm(request: FastifyRequest, interaction: Interaction): void {
    try {
      formTokens.check(request, tokenContext(interaction));
    } catch (error) {
      signInTrace.refused(request, interaction, refusedForm(request, baseUrl));
      throw error;
    }
  }

  async function load(request: FastifyRequest, reply: FastifyReply): Promise<Interaction | undefined> {
    const { uid } = request.params as { uid: string };
    try {
      const interaction = await provider().interactionDetails(request.raw, reply.raw);
      if (interaction.uid === uid) return interaction;
    } catch (error) {
      if ((error as Error).name !== 'SessionNotFound') throw error;
    }
    // Only the browser that began the interaction has its cookie.
    await signInTrace.refusedOf(request, uid, lostPage());
    reply
      .code(400)
      .headers({ ...pageHeaders })
      .type('text/html; charset=utf-8');
    reply.send(renderExpiredPage(app.brand, request.id));
    return undefined;
  }

  async function show(
    interaction: Interaction,
    reply: FastifyReply,
    hasChanged = false,
  ): Promise<FastifyReply> {
    if (interaction.prompt.name === 'login') return showLogin(interaction, reply, {});
    const { client, name } = await clientOf(interaction);
    const account = await findAccount(
      db,
      interaction.session?.accountId ?? '00000000-0000-0000-0000-000000000000',
    );
    const named = String(interaction.params.scope ?? '')
      .split(' ')
      .filter(Boolean);
    const asked = account?.isAdmin === true ? named : withoutAdminScope(named);
    const { redirect_uri: redirectUri } = interaction.params;
    const content = consentForm({
      client,
      name,
      token: formTokens.make(tokenContext(interaction)),
      hasChanged,
      email: account === undefined ? '' : (account.email ?? nameOfAccount(account)),
      scopes: asked.map((scope) => describeScope(scope, scopes)),
      receivesEvents: client !== undefined && mayReceiveEvents(options.eventRules, client, asked),
      apis: requestedApis(interaction.params.resource, options.resources, baseUrl),
      redirectUri: typeof redirectUri === 'string' ? redirectUri : null,
    });
    return sendPage(reply, 200, `Connect ${name}`, content);
  }

  async function showLogin(
    interaction: Interaction,
    reply: FastifyReply,
    failure: Partial<SignInFailure>,
  ): Promise<FastifyReply> {
    const { name } = await clientOf(interaction);
    const token = formTokens.make(tokenContext(interaction));
    const isSwitch = interaction.prompt.name !== 'login';
    const email = failure.email ?? (isSwitch ? '' : String(interaction.params.login_hint ?? ''));
    // Sign-ins with a provider have no `acr`.
    const isPasswordNeeded = interaction.prompt.reasons.some((reason) => reason.startsWith('essential_acr'));
    const providers = isPasswordNeeded ? [] : (upstream?.flow.providers ?? []);
    const content = loginForm(
      name,
      token,
      { ...failure, email },
      isSwitch,
      providerButtons(providers, token, null),
    );
    return sendPage(reply, failure.status ?? 200, 'Sign in', content);
  }

  async function clientOf({ params }: Interaction) {
    const id = String(params.client_id);
    const client = (await clients.find(id))?.client;
    return { client, name: client?.name ?? id };
  }

  async function logIn(
    request: FastifyRequest,
    reply: FastifyReply,
    interaction: Interaction,
    form: Record<string, unknown>,
  ): Promise<FastifyReply> {
    const email = typeof form.email === 'string' ? form.email : '';
    const password = typeof form.password === 'string' ? form.password : '';
    const device = knownDevices.read(request.headers.cookie);
    const result = await signIn(db, email, password, request.ip, device);
    if (result.outcome === 'signed-in') {
      const { account, signInEpoch } = result;
      request.log.info({ account: account.id }, 'signed in');
      if (result.deviceCookie !== undefined) reply.header('set-cookie', result.deviceCookie);
      const login = { accountId: account.id, signInEpoch, acr: passwordAcr(baseUrl) };
      // oidc-provider keeps earlier results of the request. Discard a consent that another account gave.
      return finish(request, reply, { login, consent: undefined });
    }
    request.log.info({ outcome: result.outcome }, 'sign-in refused');
    signInTrace.refused(request, interaction, refusedPassword(result.outcome));
    return showLogin(interaction, reply, signInFailure(result, email, reply));
  }

  async function finish(request: FastifyRequest, reply: FastifyReply, result: Result): Promise<FastifyReply> {
    const returnTo = await submitInteraction(request, reply, result);
    return reply.header('cache-control', 'no-store').redirect(returnTo, 303);
  }
}

/** What the application receives; `prompt` is null if the app sent none. */
function loginRequestOf({ uid, params }: Interaction, prompt: unknown): NewLoginRequest {
  const words = (value: unknown) => (typeof value === 'string' ? value.split(' ').filter(Boolean) : []);
  const maxAge = Number(params.max_age ?? Number.NaN);
  return {
    interactionUid: uid,
    clientId: String(params.client_id),
    parameters: {
      scopes: words(params.scope),
      loginHint: typeof params.login_hint === 'string' ? params.login_hint : null,
      prompt: typeof prompt === 'string' ? prompt : null,
      acrValues: words(params.acr_values),
      maxAge: Number.isSafeInteger(maxAge) ? maxAge : null,
    },
  };
}

/**
 * Returns an error if the application has just signed a user in and the request still requires another user or `acr`. Another
 * redirect to the application would loop.
 */
function unmetBySignIn({ lastSubmission, prompt }: Interaction): Result | null {
  if (lastSubmission?.login === undefined) return null;
  return prompt.reasons.some((reason) => reason.startsWith('essential_acr'))
    ? {
        error: 'unmet_authentication_requirements',
        error_description: 'the sign-in did not reach the requested acr',
      }
    : { error: 'login_required', error_description: 'a different user signed in than requested' };
}

/** Includes the prompt, so that a token of the login page cannot confirm a consent. */
function tokenContext(interaction: Interaction): string {
  return `interaction\n${interaction.uid}\n${interaction.prompt.name}`;
}

/** @param isSwitch whether the user chose "Not you?" */
function loginForm(
  name: string,
  token: string,
  failure: Partial<SignInFailure> & { email: string },
  isSwitch: boolean,
  providers: Html | false,
): Html {
  return html`<h1>Sign in</h1>
<p class="soft">to continue to <strong>${name}</strong></p>
${providers}
${signInMessage(failure.message)}
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
${signInFields(failure.email, failure.message)}
<button type="submit" name="action" value="login">Sign in</button>
</form>
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
${
  isSwitch
    ? html`<button class="secondary" type="submit" name="action" value="back">Back</button>`
    : html`<button class="secondary" type="submit" name="action" value="deny">Cancel</button>`
}
</form>`;
}
