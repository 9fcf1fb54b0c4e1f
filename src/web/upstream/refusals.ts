/**
 * Explains refused sign-ins with an upstream provider for the connection trace. The developers of the app read it, so it contains neither
 * the provider's own text nor anything about its network: the log has that for the operator.
 */

import type { UpstreamError } from '../../accounts/upstream/upstream_client.ts';
import type { RefusedPage } from '../sign_in_trace.ts';
import type { refusalContent } from './upstream_pages.ts';

/** RFC 6749 sections 4.1.2.1 and 5.2, OpenID Connect Core section 3.1.2.6. Other codes are not shown: anyone can send them. */
const knownErrors: ReadonlySet<unknown> = new Set([
  'access_denied',
  'account_selection_required',
  'consent_required',
  'interaction_required',
  'invalid_client',
  'invalid_grant',
  'invalid_request',
  'invalid_scope',
  'login_required',
  'server_error',
  'temporarily_unavailable',
  'unauthorized_client',
  'unsupported_grant_type',
  'unsupported_response_type',
]);

const appIsRight = 'Nothing is wrong with the request of the app.';
const tryAgain = 'The user can try again, or sign in another way.';
const operator = 'The log of the server says more.';

/** What to do about a response that cannot be verified, by what openid-client says about it. */
const verifications: readonly (readonly [reason: RegExp, remedy: string])[] = [
  [/"nonce"/, 'Expected the nonce of this sign-in. Start again, and open the callback once.'],
  [
    /timestamp|expiration|"(?:exp|iat|nbf|auth_time)"|in the future/,
    'Synchronize the clocks of the provider and of this server (NTP).',
  ],
  [
    /signature|verification key|"alg"/,
    'Expected a signature by a key of the provider’s jwks_uri. Check the keys and the algorithm that the provider uses for this client.',
  ],
  [
    /"(?:iss|aud|azp)"/,
    'Expected the issuer and the clientId of accounts.upstream. Compare them with the provider.',
  ],
  [/state/, 'Expected the state of this sign-in. Start again, and open the callback once.'],
  [/authorization code/, 'Expected a code or an error from the provider.'],
];

/** @param error a failed sign-in with the provider */
export function refusedByProvider(error: UpstreamError, provider: string): RefusedPage {
  const { code } = error;
  const explain = explanations[code];
  // The pages of these have no reference.
  const showsRequest = code !== 'cancelled' && code !== 'throttled';
  return {
    name: 'sign-in',
    error: `upstream-${code}`,
    explanation: explain(provider, error),
    showsRequest,
  };
}

const explanations: Record<UpstreamError['code'], (provider: string, error: UpstreamError) => string> = {
  unavailable: (provider) =>
    `${provider} could not be reached, or its response was not usable. Expected its metadata, keys and tokens within a few seconds. ${operator} ${appIsRight}`,
  cancelled: (provider) =>
    `${provider} returned the error access_denied: the user cancelled the sign-in there, or may not sign in to this server. ${appIsRight} ${tryAgain}`,
  refused: (provider, { cause }) => {
    const { error, status } = (cause ?? {}) as { error?: unknown; status?: unknown };
    const shown = knownErrors.has(error) ? `the error ${error}` : 'an error';
    return status === undefined
      ? `${provider} returned ${shown} instead of a code. Expected that it signs the user in. The operator of this server can compare the client and its redirect URI at the provider with accounts.upstream. ${operator} ${appIsRight}`
      : `${provider} rejected the code with ${shown}. Expected tokens. The operator of this server can compare clientId, its secret and the redirect URI with the provider. ${operator} ${appIsRight}`;
  },
  invalid: (provider, error) => {
    const reason = verificationOf(error);
    const remedy =
      verifications.find(([pattern]) => pattern.test(reason))?.[1] ??
      'Expected an OpenID Connect response with a valid ID token.';
    return `The response of ${provider} could not be verified${reason === '' ? '' : `: ${reason}`}. ${remedy} ${operator} ${appIsRight}`;
  },
  throttled: (provider) =>
    `${provider} has refused too many codes from the network of the user. The user can wait for 15 minutes, or sign in another way. ${appIsRight}`,
};

/** The check that failed, in the words of openid-client. Other errors in the chain may contain the response. */
function verificationOf(error: UpstreamError): string {
  if (error.cause === undefined) return error.message;
  const outer = error.cause as Error;
  const inner = outer.cause;
  if (inner instanceof Error && inner.name === 'OperationProcessingError') return inner.message;
  return outer instanceof Error && outer.name === 'ClientError' ? outer.message : '';
}

const outcomes: Record<Parameters<typeof refusalContent>[0], (provider: string) => string> = {
  disabled: () => 'The account of the user is disabled. Only the operator of this server can enable it.',
  'too-many': () =>
    'The account of the user is connected to as many identities of providers as it may have. The user can disconnect one at /account.',
  'of-another-account': (provider) =>
    `The user’s identity at ${provider} is connected to another account here. The user can sign in to that account, or disconnect it there.`,
  'too-old': (provider) =>
    `The app sent prompt=login or max_age. Expected an ID token of ${provider} whose auth_time is as recent. Check that the provider supports max_age and sends auth_time, or do not ask for it.`,
};

/** A verified identity that cannot sign in. */
export function refusedIdentity(
  outcome: Parameters<typeof refusalContent>[0],
  provider: string,
): RefusedPage {
  const explanation = `${outcomes[outcome](provider)} ${tryAgain}`;
  return { name: 'sign-in', error: `upstream-${outcome}`, explanation, showsRequest: false };
}

/** A response of a provider without a sign-in of this browser: `state` is missing, unknown or used, or the cookie is missing. */
export const lostUpstream: RefusedPage = {
  name: 'sign-in',
  error: 'upstream-expired',
  explanation:
    'The browser came back from the sign-in with a provider without a state and a cookie that belong together. A sign-in works once, within ten minutes, and only in the browser where it began. Start again in one browser that accepts cookies; if it happens again, check that the provider returns state unchanged and that no proxy cuts the query.',
  showsRequest: false,
};

export const tooManySignIns: RefusedPage = {
  name: 'sign-in',
  error: 'upstream-too-many-attempts',
  explanation:
    'This authorization request has begun as many sign-ins with a provider as it may. Start again in the app.',
  showsRequest: false,
};
