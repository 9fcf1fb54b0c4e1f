/** Reads the application's response to a login request, and checks it against the authorization request. */

import type { ExternalAccount } from '../accounts/external_account.ts';
import { type LoginRequest, unknownAuthTime } from '../accounts/login_request.ts';
import { readJsonObject } from '../http/json_object.ts';
import { bodyProblem, type ValidationError } from '../http/problem.ts';
import { readAccountOfLogin } from './members.ts';

/** Tolerance between the clocks of the application and of this server, in seconds. */
const clockToleranceSeconds = 60;
/** Maximum number of `amr` values, and maximum lengths of `amr` and `acr` values in characters. */
export const amrMax = 10;
export const amrCharactersMax = 64;
export const acrCharactersMax = 255;
/** Maximum length of an error description in characters. */
export const descriptionCharactersMax = 200;

/** Errors that the application may return to the app (RFC 6749 section 4.1.2.1, OpenID Connect Core section 3.1.2.6). */
export const loginErrors = [
  'access_denied',
  'login_required',
  'interaction_required',
  'account_selection_required',
  'temporarily_unavailable',
  'unmet_authentication_requirements',
] as const;

export interface Acceptance {
  account: ExternalAccount;
  /** Seconds since the epoch; `unknownAuthTime` if the application does not provide it. */
  authTime: number;
  amr: string[] | null;
  acr: string | null;
}

/** @throws Problem 422 */
export function readAcceptance(body: unknown, { parameters, createdAt }: LoginRequest): Acceptance {
  const errors: ValidationError[] = [];
  const given = readJsonObject(body, ['account', 'auth_time', 'amr', 'acr'], errors);
  const account = readAccountOfLogin(given.account, '/account', errors);
  const { auth_time: authTime, amr = null, acr = null } = given;
  const now = Math.floor(Date.now() / 1_000);
  const isFresh = parameters.prompt?.split(' ').includes('login') === true;
  if (authTime !== undefined && !isTime(authTime, now)) {
    errors.push({
      pointer: '/auth_time',
      message: 'must be the time of the sign-in in seconds since 1970, and not in the future',
    });
  } else if (authTime === undefined && (isFresh || parameters.maxAge !== null)) {
    errors.push({
      pointer: '/auth_time',
      message: 'is required because the request has prompt=login or max_age',
    });
  } else {
    const startedAt = Math.floor(createdAt.getTime() / 1_000);
    const earliest = Math.max(
      isFresh ? startedAt : 0,
      parameters.maxAge === null ? 0 : Math.min(now - parameters.maxAge, startedAt),
    );
    if (typeof authTime === 'number' && authTime < earliest - clockToleranceSeconds) {
      const message =
        'is too far in the past for prompt=login or max_age of the request: sign the user in again';
      errors.push({ pointer: '/auth_time', message, code: 'login-too-old' });
    }
  }
  if (amr !== null && !isAmr(amr)) {
    errors.push({
      pointer: '/amr',
      message: `must be an array of up to ${amrMax} strings with 1 to ${amrCharactersMax} visible ASCII characters`,
    });
  }
  if (acr !== null && !isVisible(acr, acrCharactersMax)) {
    errors.push({ pointer: '/acr', message: `must have 1 to ${acrCharactersMax} visible ASCII characters` });
  }
  if (account === undefined || errors.length > 0) throw bodyProblem(errors);
  return {
    account,
    authTime: typeof authTime === 'number' ? authTime : unknownAuthTime,
    amr: amr as string[] | null,
    acr: acr as string | null,
  };
}

/** @throws Problem 422 */
export function readRejection(body: unknown): { error: string; description: string | null } {
  const errors: ValidationError[] = [];
  const given = readJsonObject(body ?? {}, ['error', 'error_description'], errors);
  const { error = 'access_denied', error_description: description = null } = given;
  if (!(loginErrors as readonly unknown[]).includes(error)) {
    errors.push({ pointer: '/error', message: `must be one of ${loginErrors.join(', ')}` });
  }
  // RFC 6749 section 4.1.2.1 excludes quotation marks and backslashes.
  if (description !== null && !isDescription(description)) {
    const message = `must have 1 to ${descriptionCharactersMax} printable ASCII characters except " and \\`;
    errors.push({ pointer: '/error_description', message });
  }
  if (errors.length > 0) throw bodyProblem(errors);
  return { error: error as string, description: description as string | null };
}

function isTime(value: unknown, now: number): value is number {
  return (
    Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= now + clockToleranceSeconds
  );
}

function isAmr(value: unknown): boolean {
  return (
    Array.isArray(value) && value.length <= amrMax && value.every((each) => isVisible(each, amrCharactersMax))
  );
}

function isVisible(value: unknown, charactersMax: number): boolean {
  return typeof value === 'string' && value.length <= charactersMax && /^[\x21-\x7e]+$/.test(value);
}

function isDescription(value: unknown): boolean {
  return (
    typeof value === 'string' &&
    value.length <= descriptionCharactersMax &&
    /^[\x20\x21\x23-\x5b\x5d-\x7e]+$/.test(value)
  );
}
