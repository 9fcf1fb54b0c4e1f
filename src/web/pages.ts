/** Registers all pages. Only they accept forms. */

import formBody from '@fastify/formbody';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { createKnownDevices } from '../accounts/known_device.ts';
import type { AccountSettings } from '../accounts/settings.ts';
import type { UpstreamClient } from '../accounts/upstream/upstream_client.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import { isFault, toProblem } from '../http/errors.ts';
import type { Problem } from '../http/problem.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import { type AccountPagesOptions, registerAccountPages } from './account_pages.ts';
import { renderProblemPage } from './error_page.ts';
import { createFormTokens } from './form_token.ts';
import { createHandedOverLogin } from './handed_over_login.ts';
import { type InteractionPagesOptions, registerInteractionPages } from './interaction_pages.ts';
import { registerLogos } from './logos.ts';
import { registerMailBox } from './mail_box_pages.ts';
import { registerUnsubscribe } from './notice_pages.ts';
import { pageHeaders, registerStylesheet } from './page.ts';
import { createSignInTrace, type SignInTrace } from './sign_in_trace.ts';
import { registerStartPage, type StartPageOptions } from './start_page.ts';
import type { FinishOptions } from './upstream/finish_login.ts';
import { createUpstreamFlow } from './upstream/upstream_flow.ts';

/** Maximum size of a form in bytes. */
const formBytesMax = 16_384;

export interface PagesOptions
  extends Omit<InteractionPagesOptions, MadeHere>,
    Omit<AccountPagesOptions, MadeHere>,
    StartPageOptions {
  secret: Buffer;
  baseUrl: string;
  traces: ConnectionTraces;
  /** Limits the sign-ins that a client address begins. */
  limiter: RateLimiter;
  /** Where users sign in; null for this server. */
  login: AccountSettings['login'];
  /** Providers that users sign in with. */
  upstreamClients: readonly UpstreamClient[];
  registration: AccountSettings['registration'];
  /** Addresses of reverse proxies. */
  trustProxy: readonly string[];
}

type MadeHere = 'formTokens' | 'knownDevices' | 'handedOver' | 'upstream' | 'signInTrace';

export function registerPages(app: FastifyInstance, options: PagesOptions): void {
  const formTokens = createFormTokens(options.secret, options.baseUrl);
  const knownDevices = createKnownDevices(options.secret, options.baseUrl);
  const { db, baseUrl, login } = options;
  const handedOver = login === null ? null : createHandedOverLogin(db, baseUrl, login, options.limiter);
  registerStylesheet(app);
  registerLogos(app, options.db);
  registerStartPage(app, { ...options, keepsMail: options.mailing.mailBox !== null });
  if (options.mailing.mailBox !== null) registerMailBox(app, options.mailing.mailBox, options.trustProxy);
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    await scope.register(formBody);
    // Of the routes and not of the parser: memory is reserved for as much as the route accepts.
    scope.addHook('onRoute', (route) => {
      route.bodyLimit ??= formBytesMax;
    });
    scope.setErrorHandler((error, request, reply) => {
      const problem = toProblem(error);
      if (isFault(problem)) request.log.error({ err: error }, 'request failed');
      return showProblem(problem, request, reply);
    });
    const signInTrace = createSignInTrace(options.provider, options.traces);
    const upstream = createUpstream(scope, options, { formTokens, knownDevices, signInTrace });
    registerInteractionPages(scope, {
      ...{ ...options, formTokens, knownDevices, handedOver, upstream },
      signInTrace,
    });
    registerAccountPages(scope, { ...options, formTokens, knownDevices, handedOver, upstream });
    registerUnsubscribe(scope, db, options.mailing.unsubscribeTokens);
  });
}

/** Null where there are no upstream providers. */
function createUpstream(
  app: FastifyInstance,
  { db, baseUrl, limiter, registration, upstreamClients: clients }: PagesOptions,
  made: Pick<FinishOptions, 'formTokens' | 'knownDevices'> & { signInTrace: SignInTrace },
): FinishOptions | null {
  if (clients.length === 0) return null;
  const { signInTrace } = made;
  const flow = createUpstreamFlow({ app, db, baseUrl, clients, limiter, signInTrace });
  return { ...made, db, baseUrl, registration, flow };
}

/** Renders an error as a page, for browsers. */
export function showProblem(problem: Problem, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  return reply
    .code(problem.status)
    .headers({ ...pageHeaders, ...problem.headers })
    .type('text/html; charset=utf-8')
    .send(renderProblemPage(reply.server.brand, problem, request.id));
}
