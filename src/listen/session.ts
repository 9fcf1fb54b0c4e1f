/**
 * The user's permission to receive events: a device code once (RFC 8628), then refresh tokens, which rotate. Two processes share one
 * file, so a token is refreshed under its lock, and only if the other process has not done it.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { parseObject, readText, shown } from '../shared/response_text.ts';
import type { StateFile, Tokens } from './state_file.ts';

/** The server's own client for this command. */
const clientId = 'nuncio-cli';
/** Milliseconds for a request with its response, and maximum bytes of a response, except for the stream of events. */
const requestMsMax = 30_000;
const responseBytesMax = 1_048_576;
/** Seconds between questions whether the user has confirmed the code, whatever the server asks for, and the maximum of all. */
const intervalSeconds = { least: 1, most: 60 };
const signInSecondsMax = 3_600;
const userCodeMax = 100;
/** Maximum characters of what the server says is wrong. */
export const reasonMax = 1_000;
/** A token is refreshed this long before its end. */
const earlyMs = 30_000;

/** Ends the command. The message is for the user. */
export class ListenError extends Error {
  override readonly name = 'ListenError';
}

export interface SessionOptions {
  baseUrl: string;
  file: StateFile;
  print: (line: string) => void;
  signal: AbortSignal;
}

interface TokenResponse {
  access_token?: string;
  refresh_token?: string;
  expires_in?: number;
  error?: string;
  error_description?: string;
}

export class Session {
  readonly #options: SessionOptions;
  #tokens: Tokens | undefined;

  constructor(options: SessionOptions) {
    this.#options = options;
  }

  /** Signs in, unless tokens are stored. @throws ListenError */
  async open(): Promise<void> {
    const { file } = this.#options;
    this.#tokens = (await file.read()).tokens;
    if (this.#tokens === undefined) await this.#signIn();
  }

  /**
   * Sends a request to the API.
   * @throws ListenError if access was withdrawn
   * @throws TypeError if the server cannot be reached
   */
  async request(path: string, init: RequestInit = {}): Promise<Response> {
    if (Date.now() > (this.#tokens?.expires_at ?? 0) - earlyMs) await this.#refresh();
    const response = await this.#send(path, init);
    if (response.status !== 401) return response;
    await response.body?.cancel();
    await this.#refresh();
    return this.#send(path, init);
  }

  #send(path: string, init: RequestInit): Promise<Response> {
    const headers = new Headers(init.headers);
    headers.set('authorization', `Bearer ${this.#tokens?.access_token}`);
    const signal = init.signal ?? AbortSignal.any([this.#options.signal, AbortSignal.timeout(requestMsMax)]);
    return fetch(this.#options.baseUrl + path, { redirect: 'error', ...init, headers, signal });
  }

  async #refresh(): Promise<void> {
    const known = this.#tokens;
    const { file } = this.#options;
    const tokens = await file.change(async (state) => {
      if (state.tokens !== undefined && state.tokens.access_token !== known?.access_token)
        return state.tokens;
      const refreshToken = state.tokens?.refresh_token ?? known?.refresh_token ?? '';
      const body = await this.#post('/oauth/token', {
        grant_type: 'refresh_token',
        refresh_token: refreshToken,
      });
      if (body.access_token !== undefined) {
        state.tokens = toTokens(body, refreshToken);
        return state.tokens;
      }
      if (body.error !== 'invalid_grant') throw new TypeError(describe(body));
      delete state.tokens;
      state.subscriptions = {};
      return undefined;
    });
    if (tokens === undefined) {
      throw new ListenError('access was withdrawn or has expired: run the command again to sign in');
    }
    this.#tokens = tokens;
  }

  async #signIn(): Promise<void> {
    const { baseUrl, file, print, signal } = this.#options;
    const started = await this.#post('/oauth/device', { scope: await this.#scopes() });
    const {
      device_code: code,
      user_code: userCode,
      interval,
    } = started as TokenResponse & Partial<Record<'device_code' | 'user_code' | 'interval', unknown>>;
    if (typeof code !== 'string' || typeof userCode !== 'string') {
      throw new ListenError(`${baseUrl} does not offer signing in with a device code: ${describe(started)}`);
    }
    print('To let this program receive your events, open');
    print(
      `  ${baseUrl}/device?user_code=${encodeURIComponent(userCode.toWellFormed().slice(0, userCodeMax))}`,
    );
    print(`and check that the page shows the code ${shown(userCode, userCodeMax)}.`);
    const startedAt = performance.now();
    for (let seconds = pauseOf(interval); ; seconds = pauseOf(seconds)) {
      if (performance.now() - startedAt > signInSecondsMax * 1_000)
        throw new ListenError('nobody has confirmed the code: run the command again');
      await sleep(seconds * 1_000, undefined, { signal });
      const body = await this.#post('/oauth/token', {
        grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
        device_code: code,
      }).catch((error): TokenResponse => {
        if (error instanceof ListenError || signal.aborted) throw error;
        return { error: 'slow_down' };
      });
      if (body.error === 'slow_down') seconds += 5;
      else if (body.access_token !== undefined && body.refresh_token !== undefined) {
        const tokens = toTokens(body, body.refresh_token);
        await file.change((state) => {
          state.tokens = tokens;
        });
        this.#tokens = tokens;
        print('Signed in.');
        return;
      } else if (body.error === 'access_denied') throw new ListenError('the request was denied');
      else if (body.error === 'expired_token')
        throw new ListenError('the code has expired: run the command again');
      else if (body.error !== 'authorization_pending') throw new ListenError(describe(body));
    }
  }

  /** All scopes that let an app read something, and those for subscriptions. */
  async #scopes(): Promise<string> {
    const { baseUrl, signal } = this.#options;
    const response = await fetch(`${baseUrl}/.well-known/oauth-protected-resource`, {
      redirect: 'error',
      signal: AbortSignal.any([signal, AbortSignal.timeout(requestMsMax)]),
    }).catch((error) => {
      throw new ListenError(
        `${baseUrl} cannot be reached (${reasonOf(error)}): start the server, or set NUNCIO_BASE_URL`,
      );
    });
    const { scopes_supported: scopes } = await readObject(response);
    const names = (Array.isArray(scopes) ? scopes : []).map(String);
    const wanted = names.filter((scope) => scope.startsWith('read:') && scope !== 'read:apps');
    return [...new Set([...wanted, 'read:webhooks', 'write:webhooks'])].join(' ');
  }

  async #post(path: string, fields: Record<string, string>): Promise<TokenResponse> {
    const { baseUrl, signal } = this.#options;
    const response = await fetch(baseUrl + path, {
      method: 'POST',
      body: new URLSearchParams({ client_id: clientId, ...fields }),
      redirect: 'error',
      signal: AbortSignal.any([signal, AbortSignal.timeout(requestMsMax)]),
    });
    const body = await readObject(response);
    // The grant is not lost when the server is only busy.
    if (response.status >= 500 || response.status === 429) throw new TypeError(`status ${response.status}`);
    return Object.keys(body).length === 0 ? { error: `status ${response.status}` } : (body as TokenResponse);
  }
}

/** @returns an empty object for anything that is none, or that is too long */
export async function readObject(response: Response): Promise<Record<string, unknown>> {
  return parseObject(await readText(response, responseBytesMax).catch(() => '')) ?? {};
}

function pauseOf(seconds: unknown): number {
  const { least, most } = intervalSeconds;
  return Math.min(Math.max(typeof seconds === 'number' ? seconds : 5, least), most);
}

function toTokens(
  { access_token: accessToken = '', refresh_token: next, expires_in: seconds = 60 }: TokenResponse,
  refreshToken: string,
): Tokens {
  return {
    access_token: accessToken,
    refresh_token: next ?? refreshToken,
    expires_at: Date.now() + seconds * 1_000,
  };
}

function describe({ error = 'no response', error_description: description }: TokenResponse): string {
  return shown(description === undefined ? String(error) : `${error}: ${description}`, reasonMax);
}

export function reasonOf(error: unknown): string {
  const { cause, message } = error as Error & { cause?: { code?: string; message?: string } };
  return shown(String(cause?.code ?? cause?.message ?? message), reasonMax);
}
