/** `POST /account-links`: a single-use URL with which an application sends a user to their account page. */

import { sql } from 'kysely';
import Type from 'typebox';
import { createAccountLink } from '../../accounts/account_link.ts';
import { type AccountName, readAccountName } from '../../accounts/account_name.ts';
import type { Database } from '../../database/database.ts';
import { loginScope } from '../../grants/scopes.ts';
import { jsonBody } from '../../http/describe.ts';
import { bodyProblem, Problem } from '../../http/problem.ts';
import { Nullable, named, strict, Time } from '../../http/schema.ts';
import { AccountNameSchema } from '../account_name.ts';
import { machine } from '../admission.ts';
import { route, serve } from '../route.ts';
import { requireControl } from './account_routes.ts';
import { type AccountApiOptions, tag } from './options.ts';

/** Maximum length of `return_to` in characters. */
const returnToCharactersMax = 2_048;

const AccountLinkCreate = named(
  'AccountLinkCreate',
  Type.Object(
    {
      account: AccountNameSchema,
      return_to: Type.Optional(Nullable(Type.String({ format: 'uri', maxLength: returnToCharactersMax }))),
    },
    strict,
  ),
);
const AccountLink = named(
  'AccountLink',
  Type.Object({ url: Type.String({ format: 'uri' }), expires_at: Time() }, strict),
);

export const linkRoutes = {
  create: route({
    id: 'create_account_link',
    method: 'post',
    path: '/account-links',
    tag,
    summary: 'Create a single-use URL to the account page of a user',
    description:
      'Redirect the browser of that user to the URL within 60 seconds. It gives access to the account page for an hour. It does not sign the user in to apps or to the console. Refused for local accounts (409 `local-account`) and administrators (409 `administrator`).',
    admission: machine(loginScope),
    body: jsonBody(AccountLinkCreate, {
      account: { external_id: 'user-4711' },
      return_to: 'https://app.example.com/settings',
    }),
    responses: { 201: { description: 'The URL.', schema: AccountLink } },
    problems: [409],
  }),
};

export function registerAccountLinks(options: AccountApiOptions): void {
  const { db, baseUrl, returnOrigins } = options;

  serve(
    options,
    linkRoutes.create,
    async ({ reply, caller, body }) => {
      const returnTo =
        body.return_to == null ? null : (readReturnTo(body.return_to, returnOrigins) as string);
      const accountId = await requireControlled(db, readAccountName(body.account) as AccountName);
      const link = { accountId, clientId: caller.clientId, returnTo };
      const { secret, expiresAt } = await createAccountLink(db, link);
      return reply.code(201).send({
        url: `${baseUrl}/account/link?${new URLSearchParams({ code: secret })}`,
        expires_at: expiresAt.toISOString(),
      });
    },
    ({ return_to: returnTo }, errors) => {
      if (returnTo == null || readReturnTo(returnTo, returnOrigins) !== undefined) return;
      const origins = [...returnOrigins].join(', ') || 'none is configured (accounts.returnTo)';
      errors.add(
        ['return_to'],
        `must be a URL with one of these origins: ${origins}`,
        'return-to-not-allowed',
      );
    },
  );
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

/** @returns undefined if users may not be sent to the URL */
function readReturnTo(value: string, origins: ReadonlySet<string>): string | undefined {
  const url = URL.parse(value);
  // The origin of a `blob:` URL is that of the page that created it.
  if (url === null || !/^https?:$/.test(url.protocol)) return undefined;
  if (url.username !== '' || url.password !== '') return undefined;
  return origins.has(url.origin) ? url.href : undefined;
}
