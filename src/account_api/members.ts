/** Reads accounts from request bodies. Validated by hand, because an e-mail address is normalized as it is checked. */

import { normalizeEmail } from '../accounts/account.ts';
import {
  type AccountMembers,
  type ExternalAccount,
  externalIdCharactersMax,
  isExternalId,
  mustBeExternalId,
  toExternalId,
} from '../accounts/external_account.ts';
import { escapePointer } from '../http/json.ts';
import { bodyProblem, Problem, type ValidationError } from '../http/problem.ts';

/** Maximum accounts per request. */
export const accountsMax = 1_000;
/** Maximum length of an address (RFC 5321 section 4.5.3.1.3) and of a name, in characters. */
export const emailCharactersMax = 254;
export const nameCharactersMax = 200;
/** Maximum errors in one response. */
const errorsMax = 100;

const names = new Set(['email', 'email_verified', 'name', 'disabled']);

/** @throws Problem 422 with all errors */
export function readMembers(body: unknown): AccountMembers {
  const errors: ValidationError[] = [];
  const members = readObject(body, '', names, errors);
  if (members === undefined || errors.length > 0) throw bodyProblem(errors);
  return members;
}

/** Reads one account or an array of accounts. @throws Problem 422 with the errors */
export function readExternalAccounts(body: unknown): ExternalAccount[] {
  const isList = Array.isArray(body);
  const items: unknown[] = isList ? body : [body];
  if (items.length === 0 || items.length > accountsMax) {
    throw bodyProblem([{ pointer: '', message: `must have 1 to ${accountsMax} accounts` }]);
  }
  const errors: ValidationError[] = [];
  const accounts: ExternalAccount[] = [];
  const seen = new Set<string>();
  for (const [index, item] of items.entries()) {
    if (errors.length >= errorsMax) break;
    const pointer = isList ? `/${index}` : '';
    const members = readObject(item, pointer, namesWithId, errors);
    if (members === undefined) continue;
    const externalId = toExternalId((item as Record<string, unknown>).external_id);
    if (externalId === undefined)
      errors.push({ pointer: `${pointer}/external_id`, message: mustBeExternalId });
    else if (seen.has(externalId)) {
      errors.push({
        pointer: `${pointer}/external_id`,
        message: 'occurs twice in the array',
        code: 'duplicate',
      });
    } else {
      seen.add(externalId);
      accounts.push({ externalId, ...members });
    }
  }
  if (errors.length > 0) throw bodyProblem(errors);
  return accounts;
}

/** Reads the account of a login request, which cannot set `disabled`. */
export function readAccountOfLogin(
  value: unknown,
  pointer: string,
  errors: ValidationError[],
): ExternalAccount | undefined {
  const members = readObject(value, pointer, namesOfLogin, errors);
  if (members === undefined) return undefined;
  const externalId = toExternalId((value as Record<string, unknown>).external_id);
  if (externalId !== undefined) return { externalId, ...members };
  errors.push({ pointer: `${pointer}/external_id`, message: mustBeExternalId });
  return undefined;
}

const namesOfLogin = new Set(['external_id', 'email', 'email_verified', 'name']);
const namesWithId = new Set([...names, 'external_id']);

/** @throws Problem 400 */
export function readExternalId(value: string, place: string): string {
  if (isExternalId(value)) return value;
  throw new Problem(
    400,
    `${place} must have 1 to ${externalIdCharactersMax} characters, without control characters.`,
    { code: 'invalid-external-id' },
  );
}

function readObject(
  value: unknown,
  pointer: string,
  known: ReadonlySet<string>,
  errors: ValidationError[],
): AccountMembers | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    errors.push({ pointer, message: 'must be an object' });
    return undefined;
  }
  const addError = (name: string, message: string) =>
    errors.push({ pointer: `${pointer}/${escapePointer(name)}`, message });
  for (const name of Object.keys(value)) if (!known.has(name)) addError(name, 'is not a known property');
  const { email, email_verified: isEmailVerified, name, disabled } = value as Record<string, unknown>;
  const members: AccountMembers = {};
  if (email !== undefined) {
    const address = typeof email === 'string' ? normalizeEmail(email) : email;
    if (typeof address === 'string' || address === null) members.email = address;
    else addError('email', `must be an e-mail address of up to ${emailCharactersMax} characters, or null`);
  }
  if (isEmailVerified !== undefined) {
    if (typeof isEmailVerified === 'boolean' || isEmailVerified === null) {
      members.isEmailVerified = isEmailVerified;
    } else addError('email_verified', 'must be true, false or null');
  }
  if (name !== undefined) {
    if (name === null) members.name = '';
    else if (isName(name)) members.name = name.trim();
    else addError('name', `must have 1 to ${nameCharactersMax} visible characters, or be null`);
  }
  if (disabled !== undefined) {
    if (typeof disabled === 'boolean') members.isDisabled = disabled;
    else addError('disabled', 'must be true or false');
  }
  return members;
}

function isName(value: unknown): value is string {
  return (
    typeof value === 'string' &&
    value.length <= 2 * nameCharactersMax &&
    [...value].length <= nameCharactersMax &&
    value.trim() !== '' &&
    !/\p{Cc}/u.test(value)
  );
}
