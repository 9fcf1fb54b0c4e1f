/**
 * Refusals as they go over the wire: `WWW-Authenticate` by RFC 6750 section 3, RFC 9449 section 7.1 and RFC 9728
 * section 5.1, and a body of problem details (RFC 9457).
 */

import type { Scheme } from './credentials.ts';
import { proofAlgorithms } from './proof.ts';

/** An answer to be sent as it is. */
export interface Refusal {
  readonly granted: false;
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** JSON. */
  readonly body: string;
}

/** RFC 6750 section 3.1, RFC 9449 sections 7.1 and 9. */
export type ErrorCode =
  | 'invalid_request'
  | 'invalid_token'
  | 'insufficient_scope'
  | 'invalid_dpop_proof'
  | 'use_dpop_nonce';

const statusOf = {
  invalid_request: 400,
  invalid_token: 401,
  insufficient_scope: 403,
  invalid_dpop_proof: 401,
  use_dpop_nonce: 401,
} as const satisfies Record<ErrorCode, number>;

const titleOf: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  503: 'Service Unavailable',
};

const algorithms = `algs="${proofAlgorithms.join(' ')}"`;

export interface Refusals {
  /** RFC 6750 section 3.1: who brought no token is told no error, only how to go about it. */
  noToken(): Refusal;
  refuse(scheme: Scheme, error: ErrorCode, detail: string, extra?: RefusalExtra): Refusal;
  /** Whoever cannot know lets nobody in. */
  unavailable(detail: string): Refusal;
}

export interface RefusalExtra {
  /** What the request needs, for `insufficient_scope`. */
  scope?: string;
  /** The nonce to use from now on. */
  nonce?: string | undefined;
}

/** @param metadataUrl where this resource's metadata (RFC 9728) are */
export function createRefusals(metadataUrl: string): Refusals {
  const resourceMetadata = `resource_metadata="${metadataUrl}"`;

  return {
    noToken() {
      const challenge = `Bearer ${resourceMetadata}, DPoP ${algorithms}, ${resourceMetadata}`;
      return toRefusal(401, 'no-token', 'An access token is required.', { 'www-authenticate': challenge });
    },
    refuse(scheme, error, detail, { scope, nonce } = {}) {
      const parameters = [
        `error="${error}"`,
        `error_description="${detail}"`,
        ...(scope === undefined ? [] : [`scope="${scope}"`]),
        ...(scheme === 'DPoP' ? [algorithms] : []),
        resourceMetadata,
      ];
      return toRefusal(statusOf[error], error.replaceAll('_', '-'), detail, {
        'www-authenticate': `${scheme} ${parameters.join(', ')}`,
        ...(nonce === undefined ? {} : { 'dpop-nonce': nonce }),
      });
    },
    unavailable(detail) {
      return toRefusal(503, 'cannot-check', detail, { 'retry-after': '5' });
    },
  };
}

function toRefusal(status: number, code: string, detail: string, headers: Record<string, string>): Refusal {
  const type = `urn:nuncio:problem:${code}`;
  return {
    granted: false,
    status,
    headers: { ...headers, 'content-type': 'application/problem+json', 'cache-control': 'no-store' },
    body: JSON.stringify({ type, title: titleOf[status], status, detail, code }),
  };
}
