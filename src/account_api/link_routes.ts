/** `POST /account-links`: a single-use URL with which an application sends a user to their account page. */

import { sql } from 'kysely';
import { createAccountLink } from '../accounts/account_link.ts';
import { type AccountName, mustNameAccount, readAccountName } from '../accounts/account_name.ts';
import type { Database } from '../database/database.ts';
import { loginScope } from '../grants/scopes.ts';
import { readJsonObject } from '../http/json_object.ts';
import { bodyProblem, Problem, type ValidationError } from '../http/problem.ts';
import { requireControl } from './account_routes.ts';
import { type AccountApiOptions, machineGuard } from './machine_guard.ts';

/** Maximum length of `return_to` in characters. */
export const returnToCharactersMax = 2_048;

export function registerAccountLinks(options: AccountApiOptions): void {
  const { api, db, baseUrl, returnOrigins } = options;
  const machine = machineGuard(options, loginScope);

  api.post('/account-links', async (request, reply) => {
    const { clientId } = await machine(request);
    const { account, returnTo } = readLink(request.body, returnOrigins);
    const accountId = await requireControlled(db, account);
    const { secret, expiresAt } = await createAccountLink(db, { accountId, clientId, returnTo });
    return reply.code(201).send({
      url: `${baseUrl}/account/link?${new URLSearchParams({ code: secret })}`,
      expires_at: expiresAt.toISOString(),
    });
  });
}

/** Finds an account that the application controls. Links for others would bypass their sign-in. @throws Problem 409, 422 */
async function requireControlled(db: Database, { id, externalId }: AccountName): Promise<string> {
  const { rows } = await sql<{
    id: string;
    external_id: string | null;
    is_admin: boolean;
    is_disabled: boolean;
  }>`
    select id, external_id, is_admin, disabled_at is not null as is_disabled from accounts
    where ${id === undefined ? sql`external_id = ${externalId}` : sql`id = ${id}`}`.execute(db);
  const row = rows[0];
  if (row === undefined) {
    throw bodyProblem([{ pointer: '/account', message: 'does not exist', code: 'unknown-account' }]);
  }
  requireControl(row);
  if (row.is_disabled) throw new Problem(409, 'The account is disabled.', { code: 'account-disabled' });
  return row.id;
}

function readLink(
  body: unknown,
  returnOrigins: ReadonlySet<string>,
): { account: AccountName; returnTo: string | null } {
  const errors: ValidationError[] = [];
  const given = readJsonObject(body, ['account', 'return_to'], errors);
  const { account, return_to: returnTo = null } = given;
  const named = readAccountName(account);
  if (named === undefined) errors.push({ pointer: '/account', message: mustNameAccount });
  const url = returnTo === null ? null : readReturnTo(returnTo, returnOrigins);
  if (url === undefined) {
    const origins = [...returnOrigins].join(', ') || 'none is configured (accounts.returnTo)';
    errors.push({
      pointer: '/return_to',
      message: `must be a URL with one of these origins: ${origins}`,
      code: 'return-to-not-allowed',
    });
  }
  if (named === undefined || url === undefined || errors.length > 0) throw bodyProblem(errors);
  return { account: named, returnTo: url };
}

/** @returns undefined if users may not be sent to the URL */
function readReturnTo(value: unknown, origins: ReadonlySet<string>): string | undefined {
  if (typeof value !== 'string' || value.length > returnToCharactersMax) return undefined;
  const url = URL.parse(value);
  // The origin of a `blob:` URL is that of the page that created it.
  if (url === null || !/^https?:$/.test(url.protocol)) return undefined;
  if (url.username !== '' || url.password !== '') return undefined;
  return origins.has(url.origin) ? url.href : undefined;
}
