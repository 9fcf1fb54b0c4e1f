/**
 * The last step of a sign-in with an upstream provider: the account is signed in, or the user is asked which one it is.
 * The same for authorization requests and for the account page.
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
import { type SignInFault, signInFault } from '../sign_in_form.ts';
import type { UpstreamFlow, WaitingLogin } from './upstream_flow.ts';
import { refusalContent, unfinishedContent, unknownIdentityContent } from './upstream_pages.ts';

/** Who signed in, and when; null where it was with the password, now. */
export interface FinishedLogin {
  accountId: string;
  /** Seconds since the epoch, or `unknownAuthTime`. */
  authTime: number | null;
  /** Makes the browser known: a `Set-Cookie` value. */
  deviceCookie: string | undefined;
}

export interface FinishOptions {
  db: Database;
  flow: UpstreamFlow;
  formTokens: FormTokens;
  knownDevices: KnownDevices;
  registration: 'open' | 'off';
}

/** What the sign-in continues. */
export interface FinishTarget {
  /** The authorization request; null for the account page. */
  interactionUid: string | null;
  /** The page that the sign-in began on. */
  back: string;
  signedIn: (request: FastifyRequest, reply: FastifyReply, login: FinishedLogin) => Promise<FastifyReply>;
  /** Takes over where the sign-in is to be connected to an account that is signed in. */
  connect?: (request: FastifyRequest, reply: FastifyReply, waiting: WaitingLogin) => Promise<FastifyReply>;
}

/**
 * Registers GET and POST of a page.
 * @param target what the page continues; undefined where a page has been sent instead
 */
export function registerFinish(
  app: FastifyInstance,
  path: string,
  options: FinishOptions,
  target: (request: FastifyRequest, reply: FastifyReply) => Promise<FinishTarget | undefined>,
): void {
  const { db, flow, formTokens, registration } = options;

  // HEAD would use the sign-in up.
  app.get(path, { exposeHeadRoute: false }, async (request, reply) => {
    const step = await load(request, reply);
    if (step === undefined) return reply;
    const { waiting } = step;
    if (waiting.login.accountId !== null) return connectToSignedIn(step);
    if (!isRecentEnough(waiting.login)) return refuse(step, 'too-old');
    return goOn(step, await resolveLogin(db, toWaiting(waiting), registration, false));
  });

  app.post(path, async (request, reply) => {
    const step = await load(request, reply);
    if (step === undefined) return reply;
    const { waiting } = step;
    formTokens.check(request, finishContext(waiting));
    if (waiting.login.accountId !== null) return connectToSignedIn(step);
    const form = request.body as Record<string, unknown>;
    if (form.action === 'connect') return connectByPassword(step, form);
    if (!isRecentEnough(waiting.login)) return refuse(step, 'too-old');
    return goOn(step, await resolveLogin(db, toWaiting(waiting), registration, form.action === 'create'));
  });

  async function load(request: FastifyRequest, reply: FastifyReply): Promise<Step | undefined> {
    const goal = await target(request, reply);
    if (goal === undefined) return undefined;
    const waiting = await flow.waiting(request, reply, goal.interactionUid);
    return waiting && { request, reply, options, goal, waiting };
  }
}

/** One request of the last step. */
interface Step {
  request: FastifyRequest;
  reply: FastifyReply;
  options: FinishOptions;
  goal: FinishTarget;
  waiting: WaitingLogin;
}

async function connectToSignedIn({ request, reply, goal, waiting }: Step): Promise<FastifyReply> {
  if (goal.connect !== undefined) return goal.connect(request, reply, waiting);
  return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
}

async function goOn(step: Step, resolution: Resolution): Promise<FastifyReply> {
  if (resolution.outcome !== 'signed-in') return show(step, resolution, {});
  const { request, reply, goal, waiting } = step;
  const { accountId, how: identity } = resolution;
  const provider = waiting.provider.id;
  request.log.info({ account: accountId, provider, identity }, 'signed in with a provider');
  const authTime = authTimeOf(waiting.login.identity.authTimeSeconds);
  return goal.signedIn(request, reply, { accountId, authTime, deviceCookie: undefined });
}

/** The user signs in here once: that proves that both are the same person. */
async function connectByPassword(step: Step, form: Record<string, unknown>): Promise<FastifyReply> {
  const { request, reply, options, goal, waiting } = step;
  const { db, knownDevices, registration } = options;
  const email = typeof form.email === 'string' ? form.email : '';
  const password = typeof form.password === 'string' ? form.password : '';
  const device = knownDevices.read(request.headers.cookie);
  const result = await signIn(db, email, password, request.ip, device);
  if (result.outcome !== 'signed-in') {
    request.log.info({ outcome: result.outcome }, 'sign-in refused');
    const asked = await describeUnknown(db, waiting.login.identity, registration);
    return show(step, asked, signInFault(result, email, reply));
  }
  const accountId = result.account.id;
  const resolution = await connectLogin(db, toWaiting(waiting), accountId);
  if (resolution.outcome !== 'signed-in') return show(step, resolution, {});
  request.log.info({ account: accountId, provider: waiting.provider.id }, 'provider connected by a sign-in');
  return goal.signedIn(request, reply, { accountId, authTime: null, deviceCookie: result.deviceCookie });
}

/** Where nobody is signed in: the question, or the reason. */
function show(step: Step, resolution: Resolution, fault: Partial<SignInFault>): FastifyReply {
  const { reply, options, goal, waiting } = step;
  switch (resolution.outcome) {
    case 'unknown': {
      const content = unknownIdentityContent({
        token: options.formTokens.make(finishContext(waiting)),
        provider: waiting.provider.name,
        label: waiting.login.identity.label,
        mayCreate: resolution.mayCreate,
        takenEmail: resolution.takenEmail,
        fault,
        back: goal.back,
      });
      return sendPage(reply, fault.status ?? 200, 'Connect your account', content);
    }
    case 'disabled':
    case 'too-many':
    case 'of-another-account':
      return refuse(step, resolution.outcome);
    default:
      return sendPage(reply, 400, 'This sign-in cannot be finished', unfinishedContent);
  }
}

function refuse({ reply, goal, waiting }: Step, outcome: Parameters<typeof refusalContent>[0]): FastifyReply {
  const content = refusalContent(outcome, waiting.provider.name, goal.back);
  return sendPage(reply, 403, 'You are not signed in', content);
}

/** Forms of this step belong to the browser that began the sign-in. */
export function finishContext({ browserSecret }: Pick<WaitingLogin, 'browserSecret'>): string {
  return `upstream\n${browserSecret}`;
}

export function toWaiting({ browserSecret, login }: WaitingLogin) {
  return { browserSecret, identity: login.identity };
}

/** A provider's clock may be ahead: nobody has signed in later than now. */
function authTimeOf(authTimeSeconds: number | null): number {
  return authTimeSeconds === null
    ? unknownAuthTime
    : Math.min(authTimeSeconds, Math.floor(Date.now() / 1_000));
}
