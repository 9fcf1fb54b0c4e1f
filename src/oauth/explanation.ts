/**
 * Explains a rejected protocol request in sentences: what was sent, what was expected, and how to mend it. The log and the connection
 * traces (src/connections) use the same explanation. It contains no secrets.
 */

import type { KoaContextWithOIDC } from 'oidc-provider';
import { redact, unknownClientId, withoutQuery } from '../connections/redaction.ts';
import { clientKeysReason } from './client_keys.ts';

export interface ProviderError extends Error {
  error?: string;
  error_description?: string;
  error_detail?: string;
}

export interface Refusal {
  /** Error code of the protocol. */
  error: string;
  explanation: string;
}

/** What explanations name. */
interface Facts {
  /** Everything that oidc-provider says about the error. */
  reason: string;
  params: Readonly<Record<string, unknown>>;
  /** Redirect URIs of the app; empty if it is not registered. */
  redirectUris: readonly string[];
  authMethod: string | undefined;
  baseUrl: string;
}

type Explain = (facts: Facts) => string;
/** A pattern of the reason, and what to say about it. */
type Row = readonly [reason: RegExp, explain: Explain];

const redirectUrisShownMax = 3;

/** What to do about a sign-in that its browser cannot continue. */
export const lostSessionRemedy =
  'The browser has no cookie of this sign-in: the page was already answered, was open for too long, or belongs to another browser, such as one inside an app. Start again in one browser that accepts cookies.';

const explainRedirectUri: Explain = ({ reason, params, redirectUris }) => {
  if (/^redirect_uris\b/.test(reason)) {
    return 'Correct the redirect URIs of the app, and register it again. /docs describes each member.';
  }
  const sent = typeof params.redirect_uri === 'string' ? withoutQuery(params.redirect_uri) : 'none';
  const known = redirectUris.slice(0, redirectUrisShownMax).map(withoutQuery).join(', ');
  return `The app sent redirect_uri ${sent}. Expected exactly one that is registered${known === '' ? '' : ` (${known})`}. Correct the app, or register this redirect URI.`;
};

const explainClient: Explain = ({ params }) => {
  const sent = unknownClientId(params.client_id);
  if (sent?.startsWith('https://') === true) {
    return `The app sent client_id ${sent}. Expected a metadata document there that this server accepts. Correct the document, and open it from another network.`;
  }
  return `The app sent client_id ${sent ?? 'in a form that is not shown'}. Expected the client_id of an app that is registered here, with its credentials. Register the app, or correct its client_id.`;
};

const explainAuthentication: Explain = (facts) => {
  const { reason, params, authMethod } = facts;
  if (/client not found/.test(reason)) return explainClient(facts);
  if (params.client_assertion !== undefined) {
    return 'Expected a new client assertion for each request: with its own jti, iss and sub the client_id, and signed with a key that is registered for the app. Check the kid, the algorithm and the key.';
  }
  return `Expected ${authMethod === undefined ? 'the registered client authentication' : `client authentication by ${authMethod}`}. If the app sends it, check that no proxy removes the Authorization header.`;
};

/** The first that matches counts. */
const rows: readonly Row[] = [
  [/suspended by the operator/, () => 'Ask the operator of this server. Nothing is wrong with the request.'],
  [
    /too many new apps/,
    () =>
      'The server accepts a limited number of new apps from one network. Try again later, or ask the operator to register the app.',
  ],
  [
    /content-type bodies are supported|failed to parse the request body/,
    () =>
      'Send the body in this form, with the header Content-Type. Requests to /oauth/token are forms (application/x-www-form-urlencoded), not JSON; a registration is JSON.',
  ],
  [
    /must not be provided twice/,
    () => 'Send each parameter once. Two libraries or a proxy may add the same one.',
  ],
  [
    /request_uri is invalid|invalid request_uri|request_uri has already/,
    () =>
      'Expected the request_uri of a pushed authorization request of this app that has not expired and was not used before. Push a new request for each authorization (RFC 9126); reloading the page uses it again.',
  ],
  [
    /Pushed Authorization Request must be used/,
    () =>
      'Send the parameters to pushed_authorization_request_endpoint first, and only client_id and request_uri to the authorization endpoint (RFC 9126).',
  ],
  [/too many wrong codes/, () => 'Wait a few minutes, and enter the code that the device shows then.'],
  [
    /device code|the code has already been used/,
    () =>
      'Expected a device code that has not expired and was not used before. Start again on the device, and enter the code that it shows then.',
  ],
  [
    /(?:^|: )sign-in |username and password/,
    () =>
      'Expected the email address and password of a user of this server. Let the user sign in on the login page instead (response_type=code).',
  ],
  [
    /session (?:id cookie )?not found|session principal changed|(?:interaction|authorization) session|authorization request has expired|login session has ended/,
    () => lostSessionRemedy,
  ],
  [
    /authorization code redirect_uri mismatch/,
    () => 'Expected the redirect_uri of the authorization request. Send the same one in both requests.',
  ],
  [
    /post_logout_redirect_uri not registered/,
    () =>
      'Expected exactly one of the post_logout_redirect_uris of the app. Correct the app, or register it.',
  ],
  [/redirect_uri[^_]*(?:match|registered|allowed)|redirect_uris? must/, explainRedirectUri],
  [
    /policy requires PKCE|code_challenge (?:must be|contains)|code_challenge_method|not supported value of code_challenge/,
    () =>
      'Expected code_challenge and code_challenge_method=S256 (RFC 7636). Let the OAuth library of the app use PKCE.',
  ],
  [
    /PKCE verification failed|code_verifier/,
    () =>
      'Expected the code_verifier whose SHA-256 was sent as code_challenge. Keep the verifier from the authorization request until the token request; a second tab or a restart of the app often overwrites it.',
  ],
  [
    /code is expired|code not found|code already|already (?:used|consumed)|authorization code/,
    () =>
      'Expected an authorization code of this app that is younger than 60 seconds and was not used before. Exchange each code once and at once, and do not repeat the request.',
  ],
  [
    /refresh token missing requested/,
    () =>
      'Expected only scopes that the user has allowed. Ask for more in a new authorization request, and let the user consent to them.',
  ],
  [
    /refresh token/,
    () =>
      'Expected the latest refresh token of a grant that was not withdrawn. Store the new refresh token of each response, and let the user connect again.',
  ],
  [
    /client mismatch|client_id mismatch/,
    () => 'The code, token or credentials were issued to another app. Use them with its client_id.',
  ],
  [
    /client_id metadata document|metadata document|JSON metadata/,
    ({ params }) =>
      `Expected that ${unknownClientId(params.client_id) ?? 'the client_id'} responds 200 within a few seconds with valid JSON metadata over public https, without a redirect. Open it from another network.`,
  ],
  [
    /invalid secret|client_secret/,
    () =>
      'Expected the current client secret. Check that the app has the secret of this server and of this client_id, without added spaces or quotes.',
  ],
  [
    /iat is not recent|clock|jwt (?:expired|not active yet|issued in the future)|in the future|not yet valid|"(?:iat|exp|nbf)"|timestamp/i,
    () =>
      'A time in the request differs too much from the time of this server. Synchronize the clock of the app’s machine (NTP).',
  ],
  [
    /htu mismatch/,
    ({ baseUrl }) =>
      `Expected a DPoP proof whose htu is the URL below ${baseUrl}. Use the URLs of the metadata document; if they differ, the base URL of this server is wrong.`,
  ],
  [
    /DPoP|jkt|proof/,
    () =>
      'Expected a new DPoP proof for this request, signed with the key of the grant (RFC 9449). If the app sends one, check that no proxy removes the DPoP header.',
  ],
  [
    /certificate|x5t/,
    () => 'Expected the client certificate of the app. Check that the proxy asks for it and forwards it.',
  ],
  [
    /audience|\baud\b/,
    ({ baseUrl }) => `Expected the audience ${baseUrl}. Use the issuer of the metadata document.`,
  ],
  [
    /only be provided using one mechanism/,
    () =>
      'Send the credentials of the app in one place: the Authorization header, the body or an assertion. Check that no proxy or library adds another.',
  ],
  [/authentication mechanism|client authentication|authorization header/i, explainAuthentication],
  [
    /resource/,
    ({ params, baseUrl }) => {
      const sent = typeof params.resource === 'string' ? withoutQuery(params.resource) : 'none';
      return `The app sent resource ${sent}. Expected one resource of this server, such as ${baseUrl}, the same in the authorization and the token request (RFC 8707). Take it from the protected resource metadata.`;
    },
  ],
  [/client not found/, explainClient],
  [/response_type/, () => 'Expected response_type=code.'],
  [
    /scope/,
    () =>
      'Expected only scopes that this app may ask for. Compare scopes_supported of the metadata with the scopes of the app.',
  ],
  [
    /grant type/,
    () => 'Expected a grant type of this app. Add it to the app’s grant_types, or use another one.',
  ],
];

const unverifiedReason = /has not verified this app/;

/** Whether the operator has refused the access, and not the user. */
export function isOperatorsDecision({ error_description: reason }: ProviderError): boolean {
  return unverifiedReason.test(reason ?? '');
}

/** Codes that say more than their reasons. */
const decisions: Readonly<Record<string, Explain>> = {
  access_denied: ({ reason }) => {
    if (unverifiedReason.test(reason)) {
      return 'Until then, only members of the app can connect it. Ask the operator to verify the app. Nothing is wrong with the request.';
    }
    return /user denied|aborted|^$/i.test(reason)
      ? 'The user did not allow the access. Nothing is wrong with the app; it can ask again.'
      : 'The sign-in or the access was refused. Nothing is wrong with the request; the app can ask again.';
  },
  login_required: () =>
    'The app sent prompt=none, but the user is not signed in. Repeat the request without prompt=none.',
  consent_required: () =>
    'The app sent prompt=none, but the user has not allowed this access. Repeat the request without prompt=none.',
  interaction_required: () =>
    'The app sent prompt=none, but the user must act. Repeat the request without prompt=none.',
};

const byCode: Readonly<Record<string, Explain>> = {
  invalid_client: explainClient,
  invalid_client_metadata: () =>
    'Correct the metadata of the app (RFC 7591), and register it again. /docs describes each member.',
  invalid_token: () =>
    'Expected a token that this server issued for this request. To register an app, ask the operator for a new initial access token.',
  invalid_request_object: () =>
    'Expected a request object (RFC 9101) for this server, signed with a key that is registered for the app, with the parameters of the request.',
  invalid_grant: () =>
    'Expected a code or refresh token of this app that is not used up, expired or withdrawn. Let the user connect again.',
  invalid_redirect_uri: explainRedirectUri,
  unsupported_grant_type: () =>
    'Expected one of grant_types_supported of the metadata document. Use another grant type.',
};

const fallback: Explain = () => 'Compare the request with the documentation at /docs.';

/** More than is shown of it. */
const reasonLengthMax = 1_200;

/** Explains an error of oidc-provider. */
export function explainRefusal(ctx: KoaContextWithOIDC, error: ProviderError): Refusal {
  const code = error.error ?? error.name;
  const params = paramsOf(ctx);
  const client = ctx.oidc?.client;
  const reasons = [
    error.error_description,
    error.error_detail,
    (error.cause as Error | undefined)?.message,
    clientKeysReason(error),
  ];
  const known = [...new Set(reasons.filter((reason) => typeof reason === 'string' && reason !== ''))];
  // It may contain what was sent, such as names in the head of a JWT.
  const reason = known.join(': ').slice(0, reasonLengthMax);
  const facts = {
    reason,
    params,
    redirectUris: client?.redirectUris ?? [],
    authMethod: client?.tokenEndpointAuthMethod,
    baseUrl: ctx.oidc?.issuer ?? ctx.origin,
  };
  const explain =
    decisions[code] ?? rows.find(([pattern]) => pattern.test(reason))?.[1] ?? byCode[code] ?? fallback;
  // A leading parameter name keeps its spelling.
  const start = /^[a-z]+(?:_|\.[a-z])/.test(reason)
    ? reason
    : `${reason.charAt(0).toUpperCase()}${reason.slice(1)}`;
  const first = reason === '' ? '' : `${start}. `;
  return { error: code, explanation: redact(first + explain(facts), params) };
}

/** The parameters that were sent, whether or not they were parsed completely, with the client_id of the Authorization header. */
export function paramsOf(ctx: KoaContextWithOIDC): Readonly<Record<string, unknown>> {
  const body: unknown = ctx.oidc?.body;
  const { client_id: id = basicClientId(ctx.get('authorization')), ...others } = {
    ...ctx.query,
    // A registration can be any JSON. The members of a string are its characters.
    ...(typeof body === 'object' && !Array.isArray(body) ? body : {}),
    ...ctx.oidc?.params,
  };
  return id === undefined ? others : { ...others, client_id: id };
}

/** RFC 6749 section 2.3.1: the id before the colon is form-encoded. The secret after it is not read. */
function basicClientId(authorization: string): string | undefined {
  const encoded = /^basic ([A-Za-z0-9+/]+=*)$/i.exec(authorization)?.[1];
  if (encoded === undefined) return undefined;
  const [id = ''] = Buffer.from(encoded, 'base64').toString().split(':', 1);
  return new URLSearchParams(`id=${id.replaceAll('&', '%26')}`).get('id') ?? undefined;
}
