/** Reports to the connection trace what keeps an agent from working although it has a token, and pages that may not ask. */

import type { FastifyRequest } from 'fastify';
import { redact } from '../connections/redaction.ts';
import { type StepName, stepKey } from '../connections/step.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import type { Principal } from '../grants/principal.ts';
import { type RpcError, rpcCodes } from './json_rpc.ts';
import { supportedVersions } from './protocol.ts';

/** A message that the endpoint does not understand: the error code of the step, and what to do. */
const messageErrors: Readonly<Record<number, readonly [error: string, remedy: string]>> = {
  [rpcCodes.parseError]: ['not-json', 'Expected one JSON-RPC message in UTF-8.'],
  [rpcCodes.invalidRequest]: ['invalid-message', 'Expected one JSON-RPC 2.0 message for each request.'],
  [rpcCodes.invalidParams]: [
    'missing-metadata',
    'Expected the members of params._meta that each request has since 2026-07-28. Use a current library for the protocol.',
  ],
  [rpcCodes.headerMismatch]: [
    'header-mismatch',
    'Expected the headers MCP-Protocol-Version, Mcp-Method and, for tools/call, Mcp-Name with the values of the body. If the client sends them, check that no proxy removes or changes them.',
  ],
  [rpcCodes.unsupportedVersion]: [
    'unsupported-version',
    `Expected one of ${supportedVersions.join(', ')}. Update the library of the client, or let it begin with initialize.`,
  ],
};

interface Refusal {
  name: StepName;
  error: string;
  explanation: string;
}

/** Reports a message that is refused before its method is looked at, once for each grant and error. */
export function reportRefusedMessage(
  traces: ConnectionTraces,
  request: FastifyRequest,
  principal: Principal,
  { code, message }: RpcError,
): void {
  const [error, remedy] = messageErrors[code] ?? [];
  const { grantId } = principal;
  if (error === undefined || grantId === null) return;
  if (!traces.isFirstCall(grantId, Date.now() / 1_000, error)) return;
  const refusal = { name: 'call', error, explanation: `${message} ${remedy}` } as const;
  reportRefusal(traces, request, principal, refusal, 'existing');
}

/** Reports a callback that did not echo its challenge. @param reason without anything that the callback sent */
export function reportFailedChallenge(
  traces: ConnectionTraces,
  request: FastifyRequest,
  principal: Principal,
  { url, reason }: { url: string; reason: string },
): void {
  // The path of a callback is often a secret.
  const explanation = `The callback at ${new URL(url).origin} did not echo the challenge: ${reason}. Expected a 2xx within 10 seconds with the challenge of the request as JSON. Check that the URL is the one of the callback, and that it can be reached from the internet.`;
  const refusal = { name: 'delivery', error: 'challenge-failed', explanation } as const;
  reportRefusal(traces, request, principal, refusal, 'new-or-known');
}

function reportRefusal(
  traces: ConnectionTraces,
  request: FastifyRequest,
  { grantId, clientId, accountId }: Principal,
  { name, error, explanation }: Refusal,
  belongsTo: 'existing' | 'new-or-known',
): void {
  if (grantId === null) return;
  traces.add({
    name,
    outcome: 'refused',
    error,
    explanation: redact(explanation),
    requestId: request.id,
    clientId,
    isKnown: true,
    isAuthenticated: true,
    accountId,
    grantId,
    address: request.ip,
    keys: [stepKey('grant', grantId)],
    belongsTo,
  });
}

/** Reports a request that is refused before its token is read, because of where it comes from. */
export function reportRefusedOrigin(
  traces: ConnectionTraces,
  request: FastifyRequest,
  explanation: string,
): void {
  traces.add({
    name: 'call',
    outcome: 'refused',
    error: 'origin-not-allowed',
    explanation: redact(explanation),
    requestId: request.id,
    clientId: null,
    isKnown: false,
    isAuthenticated: false,
    address: request.ip,
    keys: [stepKey('request', request.id)],
  });
}
