/**
 * How a machine client names an account in a request body: by id (a string), or by the application's own user id,
 * `{ "external_id": … }`. The forms are distinct because an external id may look like an account id.
 */

import { isId } from '../crypto/ids.ts';
import { mustBeExternalId, toExternalId } from './external_account.ts';

export type AccountName = { id: string; externalId?: never } | { id?: never; externalId: string };

/** Error message for a value that does not name an account. */
export const mustNameAccount = `must be the id of an account, or an object with only an external_id, which ${mustBeExternalId}`;

/** @returns undefined if the value does not name an account */
export function readAccountName(value: unknown): AccountName | undefined {
  if (typeof value === 'string') return isId(value) ? { id: value } : undefined;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
  const { external_id: given, ...rest } = value as Record<string, unknown>;
  const externalId = toExternalId(given);
  return externalId !== undefined && Object.keys(rest).length === 0 ? { externalId } : undefined;
}
