/**
 * Responses to rejected requests: `WWW-Authenticate` (RFC 6750 section 3, RFC 9449 section 7.1, RFC 9728 section 5.1) and
 * problem details (RFC 9457) as the body.
 */

import { proofAlgorithms } from '../shared/dpop_proof.ts';
import type { Scheme } from './credentials.ts';

/** A response, to be sent unchanged. */
export interface ErrorResponse {
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

export interface ErrorResponses {
  /** RFC 6750 section 3.1: a request without a token gets no error code, only a challenge. */
  noToken(): ErrorResponse;
  forError(scheme: Scheme, error: ErrorCode, detail: string, parameters?: ErrorParameters): ErrorResponse;
  /** 503: the token cannot be verified at the moment. */
  unavailable(detail: string): ErrorResponse;
}

export interface ErrorParameters {
  /** The required scopes, for `insufficient_scope`. */
  scope?: string;
  /** The nonce for further proofs. */
  nonce?: string | undefined;
}

/** @param metadataUrl URL of the resource metadata (RFC 9728) */
export function createErrorResponses(metadataUrl: string): ErrorResponses {
  const resourceMetadata = `resource_metadata="${metadataUrl}"`;

  return {
    noToken() {
      const challenge = `Bearer ${resourceMetadata}, DPoP ${algorithms}, ${resourceMetadata}`;
      return toErrorResponse(401, 'no-token', 'This request requires an access token.', {
        'www-authenticate': challenge,
      });
    },
    forError(scheme, error, detail, { scope, nonce } = {}) {
      const parameters = [
        `error="${error}"`,
        `error_description="${detail}"`,
        ...(scope === undefined ? [] : [`scope="${scope}"`]),
        ...(scheme === 'DPoP' ? [algorithms] : []),
        resourceMetadata,
      ];
      return toErrorResponse(statusOf[error], error.replaceAll('_', '-'), detail, {
        'www-authenticate': `${scheme} ${parameters.join(', ')}`,
        ...(nonce === undefined ? {} : { 'dpop-nonce': nonce }),
      });
    },
    unavailable(detail) {
      return toErrorResponse(503, 'cannot-check', detail, { 'retry-after': '5' });
    },
  };
}

function toErrorResponse(
  status: number,
  code: string,
  detail: string,
  headers: Record<string, string>,
): ErrorResponse {
  const type = `urn:nuncio:problem:${code}`;
  return {
    granted: false,
    status,
    headers: { ...headers, 'content-type': 'application/problem+json', 'cache-control': 'no-store' },
    body: JSON.stringify({ type, title: titleOf[status], status, detail, code }),
  };
}
