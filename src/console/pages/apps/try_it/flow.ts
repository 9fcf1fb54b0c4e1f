/**
 * The app's requests, sent by the page: authorization with PKCE, token, first call. Each is
 * recorded without the secret. None carries a cookie or the console's token.
 */

import * as oauth from 'oauth4webapi';
import type { App } from '../../../api/generated.ts';
import { issuer } from '../../../session/sign_in.ts';
import type { Exchange, Pending } from './trial.ts';

const server: oauth.AuthorizationServer = { issuer, authorization_response_iss_parameter_supported: true };
const hidden = '••••••••';

export async function beginAuthorization(
  app: App,
  redirectUri: string,
  scopes: readonly string[],
): Promise<Pending> {
  const state = oauth.generateRandomState();
  const verifier = oauth.generateRandomCodeVerifier();
  const url = new URL(`${issuer}/oauth/authorize`);
  url.search = new URLSearchParams({
    response_type: 'code',
    client_id: app.client_id,
    redirect_uri: redirectUri,
    scope: scopes.join(' '),
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  }).toString();
  return { url: url.href, state, verifier, redirectUri };
}

/** Formats the request with one parameter a line. */
export function showAuthorization({ url }: Pending): string {
  const { pathname, host, searchParams } = new URL(url);
  const lines = [...searchParams].map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return `GET ${pathname}?${lines.join('\n  &')}\nHost: ${host}`;
}

export type Answer = { code: string; isChecked: boolean; error: null } | { code: null; error: string | null };

/** Parses the pasted redirect URL or code. */
export function readAnswer(app: App, pending: Pending, text: string): Answer {
  const pasted = text.trim();
  if (pasted === '') return { code: null, error: null };
  if (/^[\w~.-]+$/.test(pasted)) return { code: pasted, isChecked: false, error: null };
  const query = pasted.includes('?') ? pasted.slice(pasted.indexOf('?')) : `?${pasted}`;
  const parameters = new URLSearchParams(query.split('#', 1)[0]);
  try {
    const checked = oauth.validateAuthResponse(
      server,
      { client_id: app.client_id },
      parameters,
      pending.state,
    );
    const code = checked.get('code');
    return code === null
      ? { code, error: 'The pasted text has no code.' }
      : { code, isChecked: true, error: null };
  } catch (error) {
    return { code: null, error: explainAnswer(error, parameters) };
  }
}

function explainAnswer(error: unknown, parameters: URLSearchParams): string {
  if (error instanceof oauth.AuthorizationResponseError) {
    return `The server responded with ${error.error}: ${error.error_description ?? 'no description'}.`;
  }
  if (!parameters.has('state') && !parameters.has('code')) {
    return 'This is not the redirect URL: it has no code and no state.';
  }
  if (error instanceof Error) return `An app must refuse this response: ${error.message}.`;
  return String(error);
}

export function requestToken(
  app: App,
  secret: string,
  pending: Pending,
  code: string,
): Promise<Exchange & { accessToken: string | null }> {
  return sendTokenRequest(app, secret, {
    grant_type: 'authorization_code',
    code,
    redirect_uri: pending.redirectUri,
    code_verifier: pending.verifier,
  });
}

export function requestOwnToken(
  app: App,
  secret: string,
): Promise<Exchange & { accessToken: string | null }> {
  return sendTokenRequest(app, secret, { grant_type: 'client_credentials' });
}

async function sendTokenRequest(app: App, secret: string, parameters: Record<string, string>) {
  const { client_id: id, token_endpoint_auth_method: method } = app;
  const usesBasic = method === 'client_secret_basic';
  const headers: Record<string, string> = {
    accept: 'application/json',
    'content-type': 'application/x-www-form-urlencoded',
  };
  const form = { ...parameters };
  if (!usesBasic) form.client_id = id;
  const shownForm = { ...form };
  const shownHeaders = { ...headers };
  if (usesBasic) {
    headers.authorization = `Basic ${btoa(`${formEncode(id)}:${formEncode(secret)}`)}`;
    shownHeaders.authorization = `Basic base64(${id}:${hidden})`;
  } else if (method === 'client_secret_post') {
    form.client_secret = secret;
    shownForm.client_secret = hidden;
  }
  const path = '/oauth/token';
  const response = await fetch(`${issuer}${path}`, {
    method: 'POST',
    headers,
    body: new URLSearchParams(form),
    credentials: 'omit',
    cache: 'no-store',
  });
  const text = await response.text();
  const body = parseOrNull(text) as { access_token?: unknown } | null;
  const token = response.ok ? body?.access_token : undefined;
  return {
    request: showRequest('POST', path, shownHeaders, shownForm),
    response: showResponse(response, text),
    isGood: response.ok,
    accessToken: typeof token === 'string' ? token : null,
  };
}

/** RFC 6749 section 2.3.1: id and secret are form-encoded before they are joined. */
function formEncode(text: string): string {
  return new URLSearchParams({ v: text }).toString().slice('v='.length);
}

/** @returns the error of a path, or null. The token must not go to another server. */
export function pathError(path: string): string | null {
  if (!path.startsWith('/')) return 'The path must begin with a slash.';
  const url = URL.parse(path, issuer);
  return url?.origin === new URL(issuer).origin ? null : 'It must be a path of this server.';
}

export async function callApi(accessToken: string, path: string): Promise<Exchange> {
  const response = await fetch(new URL(path, issuer), {
    headers: { accept: 'application/json', authorization: `Bearer ${accessToken}` },
    credentials: 'omit',
    cache: 'no-store',
    redirect: 'error',
  });
  const shownToken = accessToken.length > 24 ? `${accessToken.slice(0, 16)}…` : accessToken;
  const headers = { accept: 'application/json', authorization: `Bearer ${shownToken}` };
  return {
    request: showRequest('GET', path, headers),
    response: showResponse(response, await response.text()),
    isGood: response.ok,
  };
}

function showRequest(
  method: string,
  path: string,
  headers: Record<string, string>,
  form?: Record<string, string>,
): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  const head = [`${method} ${path}`, `host: ${new URL(issuer).host}`, ...lines].join('\n');
  if (form === undefined) return head;
  const parameters = Object.entries(form).map(([name, value]) =>
    value === hidden ? `${name}=${value}` : `${name}=${encodeURIComponent(value)}`,
  );
  return `${head}\n\n${parameters.join('\n&')}`;
}

const shownHeaders = ['content-type', 'cache-control', 'www-authenticate', 'retry-after', 'request-id'];

function showResponse(response: Response, text: string): string {
  const lines = shownHeaders.flatMap((name) => {
    const value = response.headers.get(name);
    return value === null ? [] : [`${name}: ${value}`];
  });
  const json = parseOrNull(text);
  const body = json === null ? text : JSON.stringify(json, null, 2);
  return [`${response.status} ${response.statusText}`.trim(), ...lines, '', body].join('\n');
}

function parseOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
