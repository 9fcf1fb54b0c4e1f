/** Reports the steps of connections (src/connections) from the events of oidc-provider, and discovery. */

import type { FastifyInstance } from 'fastify';
import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { isOwnClient } from '../clients/own_clients.ts';
import { unknownClientId } from '../connections/redaction.ts';
import { type Observation, type StepName, stepKey } from '../connections/step.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import { explainRefusal, isOperatorsDecision, type ProviderError, paramsOf } from './explanation.ts';

/** The steps of events that report a rejected request. */
const refusedSteps: Readonly<Record<string, StepName>> = {
  'authorization.error': 'authorize',
  'pushed_authorization_request.error': 'authorize',
  'device_authorization.error': 'authorize',
  'device_resume.error': 'consent',
  'grant.error': 'token',
  'registration_create.error': 'registration',
};

/** Ordinary responses to an app that asks again (RFC 8628 section 3.5, RFC 9449 section 8). */
const ordinaryErrors = new Set(['authorization_pending', 'slow_down', 'use_dpop_nonce']);
/** Errors of a token request that come after the authentication of a client. */
const laterErrors = new Set(['invalid_grant', 'invalid_scope', 'invalid_target', 'unauthorized_client']);
/** Steps that anyone can take with the public id of an app. */
const openSteps: readonly StepName[] = ['client-document', 'registration', 'authorize'];
/** What the user or the session decided. */
const consentErrors = new Set(['access_denied', 'consent_required', 'login_required']);
/** Errors of an app's metadata document arise while its authorization request is checked. */
const documentReason = /metadata document|the client is invalid|client is invalid/;

/** Subscribes to oidc-provider's events. */
export function reportConnections(provider: Provider, traces: ConnectionTraces): void {
  // oidc-provider's types list each event separately, so a loop over names does not match them.
  const on = (name: string, listener: (ctx: KoaContextWithOIDC, detail: never) => void) =>
    (provider as unknown as NodeJS.EventEmitter).on(name, listener as never);
  const add = (ctx: KoaContextWithOIDC, step: Partial<Observation> & Pick<Observation, 'name'>) => {
    const observation = observe(ctx, step);
    // The console and the reference are no apps that connect.
    if (!isOwnClient(observation.clientId ?? '')) traces.add(observation);
  };
  for (const [event, name] of Object.entries(refusedSteps)) {
    on(event, (ctx, error: ProviderError) => {
      const { error: code, explanation } = explainRefusal(ctx, error);
      if (ordinaryErrors.has(code)) return;
      add(ctx, { name: refusedStep(ctx, name, code, error), outcome: 'refused', error: code, explanation });
    });
  }
  on('registration_create.success', (ctx, client: { clientId: string }) =>
    add(ctx, {
      name: 'registration',
      clientId: client.clientId,
      isKnown: true,
      keys: [stepKey('registered', client.clientId)],
    }),
  );
  on('pushed_authorization_request.success', (ctx) => {
    const { request_uri: uri } = (ctx.body ?? {}) as { request_uri?: unknown };
    add(ctx, {
      name: 'authorize',
      keys: [stepKey('pushed', String(uri))],
      explanation: 'Pushed (RFC 9126).',
    });
  });
  on('device_authorization.success', (ctx, body: { device_code: string; user_code: string }) => {
    const codes = [body.device_code, body.user_code.replaceAll('-', '')];
    add(ctx, { name: 'authorize', keys: codes.map((code) => stepKey('device', code)) });
  });
  on('interaction.started', (ctx) => {
    if (ctx.oidc.route === 'authorization') reportAuthorize(ctx, add);
  });
  on('interaction.ended', (ctx) => {
    const { login, consent } = (ctx.oidc.entities.Interaction?.result ?? {}) as {
      login?: object;
      consent?: object;
    };
    if (consent !== undefined) add(ctx, { name: 'consent' });
    else if (login !== undefined) add(ctx, { name: 'sign-in' });
  });
  on('authorization.success', (ctx, out: { code?: string } | undefined) => {
    if (ctx.oidc.route === 'authorization') reportAuthorize(ctx, add);
    const code = out?.code;
    add(ctx, { name: 'code', keys: code === undefined ? [] : [stepKey('code', code)] });
  });
  on('grant.success', (ctx) => reportToken(ctx, add));
}

type Add = (ctx: KoaContextWithOIDC, step: Partial<Observation> & Pick<Observation, 'name'>) => void;

/** An authorization request, and the metadata document that it named. */
function reportAuthorize(ctx: KoaContextWithOIDC, add: Add): void {
  const { client } = ctx.oidc;
  const belongsTo = 'before-authorize';
  const id = client?.clientId ?? '';
  const keys = [stepKey('registered', id)];
  if (id.startsWith('https://')) add(ctx, { name: 'client-document', belongsTo, keys });
  add(ctx, { name: 'authorize', belongsTo, keys });
}

/** Only the first token of a grant: a refresh is no step of a connection. */
function reportToken(ctx: KoaContextWithOIDC, add: Add): void {
  const { params, client } = ctx.oidc;
  if (params?.grant_type === 'refresh_token') return;
  const isMachine = params?.grant_type === 'client_credentials';
  const keys = isMachine ? [stepKey('machine', `${client?.clientId} ${hourOf(Date.now())}`)] : [];
  add(ctx, { name: 'token', keys, explanation: `Grant type ${params?.grant_type}.` });
}

/** Tokens of a machine within one hour belong to one connection. */
function hourOf(ms: number): number {
  return Math.floor(ms / 3_600_000);
}

function refusedStep(ctx: KoaContextWithOIDC, name: StepName, code: string, error: ProviderError): StepName {
  if (name !== 'authorize') return name;
  // The browser came back to a sign-in that it cannot continue.
  if (error.name === 'SessionNotFound') return 'sign-in';
  // The operator has not verified the app, whatever its user allows.
  if (code === 'access_denied' && isOperatorsDecision(error)) return name;
  if (consentErrors.has(code) && ctx.oidc?.entities.Interaction !== undefined) {
    return ctx.oidc.session?.accountId === undefined ? 'sign-in' : 'consent';
  }
  const isDocument = String(paramsOf(ctx).client_id ?? '').startsWith('https://');
  const reason = [error.error_description, (error.cause as Error | undefined)?.message].join(' ');
  return isDocument && documentReason.test(reason) ? 'client-document' : name;
}

function observe(
  ctx: KoaContextWithOIDC,
  step: Partial<Observation> & Pick<Observation, 'name'>,
): Observation {
  const { oidc } = ctx;
  const requestId = String(ctx.res.getHeader('request-id') ?? '');
  const known = oidc?.client?.clientId;
  const params = paramsOf(ctx);
  const token = oidc?.entities.AccessToken as { grantId?: string; accountId?: string } | undefined;
  const grantId = token?.grantId ?? grantOf(ctx);
  const accountId = token?.accountId ?? accountOf(ctx);
  return {
    outcome: 'ok',
    requestId,
    clientId: known ?? unknownClientId(params.client_id),
    isKnown: known !== undefined,
    isAuthenticated: grantId !== undefined || accountId !== undefined || hasProof(ctx, step),
    accountId,
    grantId,
    address: ctx.ip,
    ...step,
    keys: [
      ...(step.keys ?? []),
      stepKey('request', requestId),
      ...keysOf(ctx, params),
      ...(grantId === undefined ? [] : [stepKey('grant', grantId)]),
    ],
  };
}

/** Whether the step itself shows that its app has authenticated. */
function hasProof({ oidc }: KoaContextWithOIDC, { name, outcome, error }: Partial<Observation>): boolean {
  const isConfidential = oidc?.client !== undefined && oidc.client.clientAuthMethod !== 'none';
  if (outcome === 'refused') return isConfidential && name === 'token' && laterErrors.has(error ?? '');
  if (name === undefined || !openSteps.includes(name)) return true;
  return isConfidential && /^(?:pushed_authorization_request|device_authorization)$/.test(oidc.route);
}

/** The user who is signed in, on the pages of a browser. */
function accountOf({ oidc }: KoaContextWithOIDC): string | undefined {
  return /^(?:authorization|resume|device_resume)$/.test(oidc?.route ?? '')
    ? oidc.session?.accountId
    : undefined;
}

function grantOf({ oidc }: KoaContextWithOIDC): string | undefined {
  const { AuthorizationCode: code, DeviceCode: device } = oidc?.entities ?? {};
  return code?.grantId ?? device?.grantId;
}

function keysOf({ oidc }: KoaContextWithOIDC, params: Readonly<Record<string, unknown>>): string[] {
  const keys: string[] = [];
  const text = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined);
  const cid = oidc?.entities.Interaction?.cid;
  if (cid !== undefined) keys.push(stepKey('interaction', cid));
  const userCode = oidc?.entities.DeviceCode?.userCode;
  if (userCode !== undefined) keys.push(stepKey('device', userCode));
  const { code, device_code: device, request_uri: pushed } = params;
  if (text(code) !== undefined && oidc?.route === 'token') keys.push(stepKey('code', text(code) as string));
  if (text(device) !== undefined) keys.push(stepKey('device', text(device) as string));
  if (text(pushed) !== undefined) keys.push(stepKey('pushed', text(pushed) as string));
  return keys;
}

/** Remembers who reads the metadata documents, which are the first step of a connection. */
export function watchDiscovery(app: FastifyInstance, traces: ConnectionTraces): void {
  app.addHook('onResponse', (request, reply, done) => {
    const { routeOptions } = request;
    if (routeOptions.url?.startsWith('/.well-known/') && reply.statusCode < 400) {
      traces.discovered(request.ip, routeOptions.url, request.id);
    }
    done();
  });
}
