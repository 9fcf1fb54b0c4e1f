/** What the application answers to a login request, read and checked against what the app asked for. */

import type { ExternalAccount } from '../accounts/external_account.ts';
import { type LoginRequest, unknownAuthTime } from '../accounts/login_request.ts';
import { escapePointer } from '../http/json.ts';
import { type BodyFault, bodyProblem } from '../http/problem.ts';
import { readAccountOfLogin } from './members.ts';

/** Seconds by which the clocks of the application and of this server may differ. */
const clockToleranceSeconds = 60;
/** Values of `amr` at most, and characters of one; characters of `acr`. */
export const amrMax = 10;
export const amrCharactersMax = 64;
export const acrCharactersMax = 255;
/** Characters of an error's description at most. */
export const descriptionCharactersMax = 200;

/** What an app may be told where the application refuses (RFC 6749 section 4.1.2.1, OpenID Connect Core section 3.1.2.6). */
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
  /** Seconds since the epoch; `unknownAuthTime` where the application does not say. */
  authTime: number;
  amr: string[] | null;
  acr: string | null;
}

/** @throws Problem 422 */
export function readAcceptance(body: unknown, { question, createdAt }: LoginRequest): Acceptance {
  const faults: BodyFault[] = [];
  const given = readObject(body, new Set(['account', 'auth_time', 'amr', 'acr']), faults);
  const account = readAccountOfLogin(given.account, '/account', faults);
  const { auth_time: authTime, amr = null, acr = null } = given;
  const now = Math.floor(Date.now() / 1_000);
  const isFresh = question.prompt?.split(' ').includes('login') === true;
  if (authTime !== undefined && !isTime(authTime, now)) {
    faults.push({ pointer: '/auth_time', message: 'must be when the user signed in, in seconds since 1970' });
  } else if (authTime === undefined && (isFresh || question.maxAge !== null)) {
    faults.push({ pointer: '/auth_time', message: 'is required by the prompt or max_age of the request' });
  } else {
    const beganAt = Math.floor(createdAt.getTime() / 1_000);
    const earliest = Math.max(
      isFresh ? beganAt : 0,
      question.maxAge === null ? 0 : Math.min(now - question.maxAge, beganAt),
    );
    if (typeof authTime === 'number' && authTime < earliest - clockToleranceSeconds) {
      const message = 'is too long ago for the prompt or max_age of the request: sign the user in again';
      faults.push({ pointer: '/auth_time', message, code: 'login-too-old' });
    }
  }
  if (amr !== null && !isAmr(amr)) {
    faults.push({
      pointer: '/amr',
      message: `may be up to ${amrMax} texts of 1 to ${amrCharactersMax} visible ASCII characters`,
    });
  }
  if (acr !== null && !isVisible(acr, acrCharactersMax)) {
    faults.push({ pointer: '/acr', message: `may have 1 to ${acrCharactersMax} visible ASCII characters` });
  }
  if (account === undefined || faults.length > 0) throw bodyProblem(faults);
  return {
    account,
    authTime: typeof authTime === 'number' ? authTime : unknownAuthTime,
    amr: amr as string[] | null,
    acr: acr as string | null,
  };
}

/** @throws Problem 422 */
export function readRejection(body: unknown): { error: string; description: string | null } {
  const faults: BodyFault[] = [];
  const given = readObject(body ?? {}, new Set(['error', 'error_description']), faults);
  const { error = 'access_denied', error_description: description = null } = given;
  if (!(loginErrors as readonly unknown[]).includes(error)) {
    faults.push({ pointer: '/error', message: `may be ${loginErrors.join(', ')}` });
  }
  // RFC 6749 section 4.1.2.1: no quotation marks, no backslash.
  if (description !== null && !isDescription(description)) {
    const message = `may have 1 to ${descriptionCharactersMax} printable ASCII characters but " and \\`;
    faults.push({ pointer: '/error_description', message });
  }
  if (faults.length > 0) throw bodyProblem(faults);
  return { error: error as string, description: description as string | null };
}

function readObject(body: unknown, known: ReadonlySet<string>, faults: BodyFault[]): Record<string, unknown> {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw bodyProblem([{ pointer: '', message: 'must be an object' }]);
  }
  for (const name of Object.keys(body)) {
    if (!known.has(name))
      faults.push({ pointer: `/${escapePointer(name)}`, message: 'is not a known property' });
  }
  return body as Record<string, unknown>;
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
