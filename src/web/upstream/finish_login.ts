/**
 * The last step of a sign-in with an upstream provider: signs the user in, or asks which account to connect. Authorization
 * requests and the account page share it.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { KnownDevices } from '../../accounts/known_device.ts';
import { unknownAuthTime } from '../../accounts/login_request.ts';
import { signIn } from '../../accounts/sign_in.ts';
import {
  connectLogin,
  describeUnknown,
  type Resolution,
  resolveLogin,
} from '../../accounts/upstream/resolution.ts';
import { isRecentEnough } from '../../accounts/upstream/upstream_login.ts';
import type { Database } from '../../database/database.ts';
import type { FormTokens } from '../form_token.ts';
import { sendPage } from '../page.ts';
import { type SignInFailure, signInFailure } from '../sign_in_form.ts';
import { type RefusedPage, refusedForm, refusedPassword } from '../sign_in_trace.ts';
import { lostUpstream, refusedIdentity } from './refusals.ts';
import type { UpstreamFlow, WaitingLogin } from './upstream_flow.ts';
import { refusalContent, unfinishedContent, unknownIdentityContent } from './upstream_pages.ts';

/** A finished sign-in. */
export interface FinishedLogin {
  accountId: string;
  /** The account's epoch when the sign-in was verified. */
  signInEpoch: number;
  /** Seconds since the epoch, or `unknownAuthTime`; null if the user has just signed in with the password. */
  authTime: number | null;
  /** The `Set-Cookie` value of a known device. */
  deviceCookie: string | undefined;
}

export interface FinishOptions {
  db: Database;
  flow: UpstreamFlow;
  formTokens: FormTokens;
  knownDevices: KnownDevices;
  registration: 'open' | 'off';
  baseUrl: string;
}

/** What a sign-in continues: an authorization request, or the account page. */
export interface FinishTarget {
  /** The authorization request; null for the account page. */
  interactionUid: string | null;
  /** The page that the sign-in began on. */
  back: string;
  signedIn: (request: FastifyRequest, reply: FastifyReply, login: FinishedLogin) => Promise<FastifyReply>;
  /** Told why the user is not signed in. */
  refused?: (request: FastifyRequest, refusal: RefusedPage) => void;
  /** Handles sign-ins that connect an identity to the signed-in account. */
  connect?: (request: FastifyRequest, reply: FastifyReply, waiting: WaitingLogin) => Promise<FastifyReply>;
}

/**
 * Registers GET and POST of the last step.
 * @param target finds what the sign-in continues; returns undefined if it has sent a page instead
 */
export function registerFinish(
  app: FastifyInstance,
  path: string,
  options: FinishOptions,
  target: (request: FastifyRequest, reply: FastifyReply) => Promise<FinishTarget | undefined>,
): void {
  const { db, flow, formTokens, registration, baseUrl } = options;

  // A HEAD request would finish the sign-in.
  app.get(path, { exposeHeadRoute: false }, async (request, reply) => {
    const step = await load(request, reply);
    if (step === undefined) return reply;
    const { waiting } = step;
    if (waiting.login.accountId !== null) return connectToSignedIn(step);
    if (!isRecentEnough(waiting.login)) return refuse(step, 'too-old');
    return finishLogin(step, await resolveLogin(db, toPendingLogin(waiting), registration, false));
  });

  app.post(path, async (request, reply) => {
    const step = await load(request, reply);
    if (step === undefined) return reply;
    const { waiting, target: continued } = step;
    try {
      formTokens.check(request, finishContext(waiting));
    } catch (error) {
      continued.refused?.(request, { ...refusedForm(request, baseUrl), name: 'sign-in' });
      throw error;
    }
    if (waiting.login.accountId !== null) return connectToSignedIn(step);
    const form = request.body as Record<string, unknown>;
    if (form.action === 'connect') return connectByPassword(step, form);
    if (!isRecentEnough(waiting.login)) return refuse(step, 'too-old');
    return finishLogin(
      step,
      await resolveLogin(db, toPendingLogin(waiting), registration, form.action === 'create'),
    );
  });

  async function load(request: FastifyRequest, reply: FastifyReply): Promise<Step | undefined> {
    const found = await target(request, reply);
    if (found === undefined) return undefined;
    const waiting = await flow.waiting(request, reply, found.interactionUid);
    if (waiting === undefined) found.refused?.(request, lostUpstream);
    return waiting && { request, reply, options, target: found, waiting };
  }
}

/** The state of one request. */
interface Step {
  request: FastifyRequest;
  reply: FastifyReply;
  options: FinishOptions;
  target: FinishTarget;
  waiting: WaitingLogin;
}

async function connectToSignedIn({ request, reply, target, waiting }: Step): Promise<FastifyReply> {
  if (target.connect !== undefined) return target.connect(request, reply, waiting);
  return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
}

async function finishLogin(step: Step, resolution: Resolution): Promise<FastifyReply> {
  if (resolution.outcome !== 'signed-in') return show(step, resolution, {});
  const { request, reply, target, waiting } = step;
  const { accountId, signInEpoch, how: identity } = resolution;
  const provider = waiting.provider.id;
  request.log.info({ account: accountId, provider, identity }, 'signed in with a provider');
  const authTime = authTimeOf(waiting.login.identity.authTimeSeconds);
  return target.signedIn(request, reply, { accountId, signInEpoch, authTime, deviceCookie: undefined });
}

/** Signing in with the password proves that the user controls the account. */
async function connectByPassword(step: Step, form: Record<string, unknown>): Promise<FastifyReply> {
  const { request, reply, options, target, waiting } = step;
  const { db, knownDevices, registration } = options;
  const email = typeof form.email === 'string' ? form.email : '';
  const password = typeof form.password === 'string' ? form.password : '';
  const device = knownDevices.read(request.headers.cookie);
  const result = await signIn(db, email, password, request.ip, device);
  if (result.outcome !== 'signed-in') {
    request.log.info({ outcome: result.outcome }, 'sign-in refused');
    target.refused?.(request, refusedPassword(result.outcome));
    const choices = await describeUnknown(db, waiting.login.identity, registration);
    return show(step, choices, signInFailure(result, email, reply));
  }
  const { account, signInEpoch, deviceCookie } = result;
  const accountId = account.id;
  const resolution = await connectLogin(db, toPendingLogin(waiting), accountId, signInEpoch);
  if (resolution.outcome !== 'signed-in') return show(step, resolution, {});
  request.log.info({ account: accountId, provider: waiting.provider.id }, 'identity connected by a sign-in');
  return target.signedIn(request, reply, { accountId, signInEpoch, authTime: null, deviceCookie });
}

/** Shows why the user is not signed in, or asks which account to connect. */
function show(step: Step, resolution: Resolution, failure: Partial<SignInFailure>): FastifyReply {
  const { request, reply, options, target, waiting } = step;
  switch (resolution.outcome) {
    case 'unknown': {
      const content = unknownIdentityContent({
        token: options.formTokens.make(finishContext(waiting)),
        provider: waiting.provider.name,
        label: waiting.login.identity.label,
        mayCreate: resolution.mayCreate,
        takenEmail: resolution.takenEmail,
        failure,
        back: target.back,
      });
      return sendPage(reply, failure.status ?? 200, 'Connect your account', content);
    }
    case 'disabled':
    case 'too-many':
    case 'of-another-account':
      return refuse(step, resolution.outcome);
    default:
      target.refused?.(request, lostUpstream);
      return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
  }
}

function refuse(
  { request, reply, target, waiting }: Step,
  outcome: Parameters<typeof refusalContent>[0],
): FastifyReply {
  target.refused?.(request, refusedIdentity(outcome, waiting.provider.name));
  const content = refusalContent(outcome, waiting.provider.name, target.back);
  return sendPage(reply, 403, 'You are not signed in', content);
}

/** The context of form tokens: binds forms of this step to the browser that began the sign-in. */
export function finishContext({ browserSecret }: Pick<WaitingLogin, 'browserSecret'>): string {
  return `upstream\n${browserSecret}`;
}

export function toPendingLogin({ browserSecret, login }: WaitingLogin) {
  return { browserSecret, identity: login.identity };
}

/** Limits `auth_time` to the current time, because the provider's clock can be ahead. */
function authTimeOf(authTimeSeconds: number | null): number {
  return authTimeSeconds === null
    ? unknownAuthTime
    : Math.min(authTimeSeconds, Math.floor(Date.now() / 1_000));
}
