/**
 * The codes of errors, for programs: lower case with dashes, stable. `docs/api.md` has them as a table, which a test compares with
 * this one. Codes of an error response have its statuses. Codes of one place of a body come with 422, in `errors`.
 */

interface ProblemCodeEntry {
  statuses: readonly number[];
  /** When it occurs, as a phrase. */
  meaning: string;
}

const at = (statuses: number | readonly number[], meaning: string): ProblemCodeEntry => ({
  statuses: typeof statuses === 'number' ? [statuses] : statuses,
  meaning,
});

const codes = {
  'account-deleted': at([409, 422], 'the account is being deleted, or was deleted'),
  'account-disabled': at(409, 'the account is disabled'),
  'account-required': at(403, 'the token acts for a client; this needs the token of an account'),
  administrator: at(403, 'machine clients have no power over administrators'),
  'ambiguous-account': at(422, 'the text is the id of one account and the external id of another'),
  'ambiguous-address': at(409, 'several members have this e-mail address'),
  'app-changed': at(412, 'the app has changed since the version that was read'),
  'app-creation-restricted': at(403, 'only administrators create apps here'),
  'app-managed-elsewhere': at(
    403,
    'the app is managed by commands, at its registration endpoint or in its document',
  ),
  'app-of-the-operator': at(409, 'apps of the operator always count as verified'),
  'app-subscriptions-off': at(403, 'the app may not have subscriptions of its own'),
  'auth-refused': at(
    422,
    'members of `auth` do not fit its type, or the deployment cannot authenticate in this way',
  ),
  'auth-required-again': at(422, '`auth` must be given again for another origin'),
  'batch-too-large': at(422, 'a batch has too many events'),
  'body-too-large': at(413, 'the body is too large for this resource'),
  busy: at([409, 503], 'other requests are changing the same; try again'),
  'database-unavailable': at(503, 'the database is unreachable or too slow; try again'),
  'delivery-cancelled': at(
    409,
    'the owner of the delivery lost the right to it, or the subscription its kind',
  ),
  'disabled-by-operator': at(403, 'only the operator can enable the account'),
  duplicate: at(422, 'two items of the array are the same'),
  'duplicate-member': at(400, 'a JSON object names a member twice'),
  'event-refused': at(422, 'the rejected event is still refused'),
  'event-too-large': at(413, 'the body of an event is too large'),
  'filter-kind': at(422, 'no kind of the subscription can be filtered: only the server publishes them'),
  'filter-too-large': at(422, 'the filter is too large'),
  'filter-type-mismatch': at(422, 'an operand of the filter has another type than the value'),
  'form-token': at(403, 'the form has expired or came from another site'),
  'handshake-failed': at(422, 'the server of the URL did not echo the challenge'),
  'header-refused': at(422, 'a header has a reserved name, or one that is named twice'),
  'header-value-required': at(
    422,
    'a static header has no stored value, or must be given again for another origin',
  ),
  'id-reused': at(422, 'the id belongs to another event'),
  'idempotency-key-in-use': at(409, 'the first request with this key is still in progress'),
  'idempotency-key-reused': at(422, 'the key was used for a different request'),
  'incomplete-body': at(400, 'the body is incomplete'),
  'inexact-number': at(422, 'JavaScript cannot represent a number of the body; send it as a string'),
  'insufficient-scope': at(403, 'the token lacks a scope'),
  'invalid-body': at(422, 'the body is not valid: see `errors`'),
  'invalid-client-metadata': at(422, 'a setting of the app is not valid'),
  'invalid-cursor': at([400, 422], '`after` is not a cursor of this list'),
  'invalid-dpop-proof': at(401, 'the DPoP proof is missing or not valid'),
  'invalid-external-id': at(400, 'an external id in the path is not valid'),
  'invalid-filter': at(422, 'the filter of a subscription is not valid'),
  'invalid-filter-path': at(422, 'a path of the filter is not a JSON pointer'),
  'invalid-host': at(400, 'the `Host` header is missing, given twice or not valid'),
  'invalid-idempotency-key': at(400, 'the `Idempotency-Key` is not valid'),
  'invalid-image': at(422, 'the image is not valid, too large or of another type'),
  'invalid-parameter': at(400, 'a query parameter is not valid'),
  'invalid-query': at(400, 'query parameters of a collection are not valid: see `errors`'),
  'invalid-range': at(400, 'a range of times is empty or too long'),
  'invalid-redirect-uri': at(422, 'a redirect URI of the app is not valid'),
  'invalid-request': at(400, 'the request is not valid'),
  'invalid-token': at(401, 'the access token is not valid, has expired or was revoked'),
  'last-owner': at(409, 'an app must keep an owner'),
  'last-secret': at(409, 'an app must keep a secret'),
  'local-account': at(409, 'machine clients have no power over local accounts'),
  'log-busy': at(503, 'the delivery log is busy; try again'),
  'login-request-answered': at(409, 'the login request has been answered'),
  'login-too-old': at(422, 'the user must sign in again'),
  'mail-local': at(403, 'kept mails are shown on the machine of the server only'),
  'metrics-local': at(403, 'metrics are available on the same machine only'),
  'metrics-token': at(401, 'metrics need their token'),
  'no-body': at(400, 'a body is required'),
  'no-client-secret': at(409, 'apps with this authentication method have no secret'),
  'no-token': at(401, 'the request has no access token'),
  'not-a-machine': at(403, 'this needs a machine client with the scope'),
  'not-acceptable': at(406, 'the resource is available as JSON only'),
  'not-an-admin': at(403, 'this needs an administrator'),
  'not-found': at(404, 'the resource does not exist, or the token may not read it'),
  'not-json': at(400, 'the body is not JSON'),
  'not-owner': at(403, 'only the owner may change the resource'),
  'origin-not-allowed': at(
    403,
    'web pages of this origin, or this host, may not use the endpoint for agents',
  ),
  overloaded: at(503, 'the server has too many requests; try again after `Retry-After`'),
  'own-account': at(409, 'administrators cannot disable their own account'),
  'owner-gone': at(409, 'the grant, account or app no longer exists'),
  'owner-required': at(403, 'this needs an owner of the app'),
  'parameters-exclude-each-other': at(400, 'two query parameters cannot be used together'),
  'patch-test-failed': at(409, 'a `test` operation of the JSON Patch failed'),
  'precondition-failed': at(412, 'a condition of the request does not hold; read the resource again'),
  'pull-only': at(
    [409, 422],
    'the subscription has no URL: nothing is sent, and its subscriber reads the events',
  ),
  'quota-account-subscriptions': at(422, 'the account has the most subscriptions allowed'),
  'quota-client-subscriptions': at(
    422,
    'the app has the most subscriptions allowed, or the user has its share of them',
  ),
  'quota-event-deliveries': at(422, 'one event of the account would have too many deliveries'),
  'quota-grant-subscriptions': at(422, 'the grant has the most subscriptions allowed'),
  'quota-own-subscriptions': at(422, 'the user or app has the most subscriptions of its own allowed'),
  'rate-limited': at(429, 'the rate limit is used up; see `Retry-After`'),
  'read-only': at(422, 'the member cannot be changed or removed'),
  'return-to-not-allowed': at(422, 'the origin of `return_to` is not configured'),
  'sign-in-ended': at(403, 'the sign-in has ended; sign in again'),
  'subscription-disabled': at(409, 'the subscription is disabled'),
  'subscription-of-an-agent': at(
    409,
    'the agent that made the subscription decides about it; it can be read and ended',
  ),
  'subscription-of-an-app': at(403, 'only the app can change its subscription'),
  'too-deep': at(422, 'JSON is nested too deeply'),
  'too-many-apps': at(409, 'the account owns the most apps allowed'),
  'too-many-attempts': at(409, 'the delivery has the most attempts allowed'),
  'too-many-headers': at(422, 'the subscription has too many static headers'),
  'too-many-members': at(409, 'the app has the most members and invitations allowed'),
  'too-many-recoveries': at(409, 'too many recoveries of the subscription are running'),
  'too-many-secrets': at(409, 'the app has two live secrets'),
  'too-many-streams': at([429, 503], 'too many live streams are open'),
  'too-many-waiting': at(429, 'too many requests of the same client, user or address are waiting'),
  'unknown-account': at(422, 'the account does not exist'),
  'unknown-filter-path': at(422, 'the schema of a kind does not have the path of the filter'),
  'unknown-kind': at(422, 'the kind is not declared'),
  'unknown-method': at(501, 'the server does not support the method'),
  'unknown-version': at(422, 'no kind has a version of this name'),
  'unreadable-request': at([400, 408, 431], 'the request cannot be read'),
  'unsupported-media-type': at(415, 'the resource does not accept this type of body'),
  'upgrade-running': at(
    503,
    'a node of an earlier version runs and cannot serve the subscription; try again after the upgrade',
  ),
  url_address: at(422, 'the URL has an address that deliveries may not reach'),
  url_credentials: at(422, 'the URL contains a user name or password'),
  url_fragment: at(422, 'the URL has a fragment'),
  url_invalid: at(422, 'this is not a URL'),
  url_length: at(422, 'the URL is too long'),
  url_port: at(422, 'the URL has a port that deliveries may not reach'),
  url_scheme: at(422, 'the URL is not `https`'),
  'use-dpop-nonce': at(401, 'the DPoP proof needs the nonce of the response'),
  'user-required': at(403, 'this needs a token that acts for a user'),
  'workers-down': at(503, 'a part of this node is not running'),
  'wrong-state': at(409, 'the resource is not in a state in which the action is allowed'),
};

export type ProblemCode = keyof typeof codes;

type Dashed<Text extends string> = Text extends `${infer Head}_${infer Tail}`
  ? `${Head}-${Dashed<Tail>}`
  : Text;

/** Converts an error code of OAuth, or a name of the API, into the spelling of codes. */
export function dashed<const Text extends string>(text: Text): Dashed<Text> {
  return text.replaceAll('_', '-') as Dashed<Text>;
}

export const problemCodes: Readonly<Record<ProblemCode, ProblemCodeEntry>> = codes;
