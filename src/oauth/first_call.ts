/** Reports the first call of a connection with its access token: to the API, to UserInfo or to the endpoint for agents. */

import type { FastifyRequest } from 'fastify';
import { isOwnClient } from '../clients/own_clients.ts';
import { redact } from '../connections/redaction.ts';
import { stepKey } from '../connections/step.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import { Problem } from '../http/problem.ts';
import type { AccessTokenClaims } from './access_token.ts';

/** What to do about a refused call, by the code of its problem. */
const remedies: Readonly<Record<string, string>> = {
  'invalid-request':
    'Send the token in one Authorization header, as Bearer or DPoP. If the app does, check that no proxy changes the header.',
  'invalid-token':
    'Get a new token with the refresh token; if that is refused as well, let the user connect again.',
  'insufficient-scope':
    'Ask for the missing scope in a new authorization request, and let the user consent to it.',
  'invalid-dpop-proof':
    'Create a new proof for each request, with its method and URL (RFC 9449), and check that no proxy removes the DPoP header.',
};

/** Where the message says more than the code: a new token would not help. */
const boundRemedies: readonly (readonly [message: RegExp, remedy: string])[] = [
  [
    /another client certificate/,
    'Call with the certificate that the token was asked with. Check that the proxy asks for it and forwards it.',
  ],
  [/use the DPoP scheme/, 'Send it as "Authorization: DPoP …", with a proof (RFC 9449).'],
  [/not bound to a key/, 'Send it as "Authorization: Bearer …".'],
];

/** What a step says of the request. */
export type Call = Pick<FastifyRequest, 'id' | 'method' | 'ip'> & {
  routeOptions: { url?: string | undefined };
};

/** Reports an accepted call. Costs a lookup in memory once a call of the grant was reported. */
export function reportCall(
  traces: ConnectionTraces,
  request: Call,
  { grantId, clientId, accountId, issuedAt }: AccessTokenClaims,
  audience: string,
): void {
  if (grantId === null || !traces.isFirstCall(grantId, issuedAt, audience) || isOwnClient(clientId)) return;
  traces.add({
    name: 'call',
    outcome: 'ok',
    explanation: `${request.method} ${request.routeOptions.url} at ${audience}.`,
    requestId: request.id,
    clientId,
    isKnown: true,
    isAuthenticated: true,
    accountId,
    grantId,
    address: request.ip,
    keys: [stepKey('grant', grantId)],
    belongsTo: 'existing',
  });
}

/** Reports a rejected call: of a new grant to its connection, and of a token that is not valid as an attempt of an unknown app. */
export function reportRefusedCall(
  traces: ConnectionTraces,
  request: Call,
  claims: AccessTokenClaims | undefined,
  audience: string,
  error: unknown,
): void {
  if (!(error instanceof Problem) || error.code === undefined || !(error.code in remedies)) return;
  const step = {
    name: 'call',
    outcome: 'refused',
    error: error.code,
    explanation: redact(explain(error, claims, audience)),
    requestId: request.id,
    address: request.ip,
  } as const;
  if (claims === undefined) {
    const keys = [stepKey('request', request.id)];
    traces.add({ ...step, clientId: null, isKnown: false, isAuthenticated: false, keys });
    return;
  }
  const { grantId, clientId, accountId, issuedAt } = claims;
  if (grantId === null || isOwnClient(clientId)) return;
  if (!traces.isFirstCall(grantId, issuedAt, error.code)) return;
  const keys = [stepKey('grant', grantId)];
  const app = { clientId, isKnown: true, isAuthenticated: true, accountId, grantId };
  traces.add({ ...step, ...app, keys, belongsTo: 'existing' });
}

function explain(error: Problem, claims: AccessTokenClaims | undefined, audience: string): string {
  if (claims !== undefined && !claims.audience.includes(audience)) {
    return `The token is for ${claims.audience.join(', ')}. Expected one for ${audience}. Send resource=${audience} in the authorization and the token request (RFC 8707).`;
  }
  const bound = boundRemedies.find(([message]) => message.test(error.message));
  return `${error.message} ${bound?.[1] ?? remedies[error.code ?? ''] ?? ''}`;
}
