/** `/accounts/<id>/grants` and `/grants/<id>`: the data for a "connected apps" page of the application. */

import { sql } from 'kysely';
import Type from 'typebox';
import { isOwnClient, ownClientIds } from '../../clients/own_clients.ts';
import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { actorName } from '../../grants/actor.ts';
import { withdrawGrant } from '../../grants/grant.ts';
import {
  openidScopes,
  readAccountsScope,
  type ScopeCatalogue,
  writeAccountsScope,
} from '../../grants/scopes.ts';
import { idParameter, links, ok, page, pageParameters, queryParameter } from '../../http/describe.ts';
import { readFlag, readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, strict, Time } from '../../http/schema.ts';
import { machine } from '../admission.ts';
import { route, serve } from '../route.ts';
import { requireAccount, requireControl } from './account_routes.ts';
import { type AccountApiOptions, tag } from './options.ts';

interface GrantRow {
  id: string;
  account_id: string;
  client_id: string;
  client_name: string | null;
  client_uri: string | null;
  scopes: string[];
  created_at: Date;
  last_used_at: Date | null;
}

const selected = sql`
  select g.id, g.account_id, g.client_id, g.scopes, g.created_at, g.last_used_at,
    c.name as client_name, c.metadata ->> 'client_uri' as client_uri
  from grants g left join clients c on c.id = g.client_id`;

const AccountGrant = named(
  'AccountGrant',
  Type.Object(
    {
      id: Id(),
      account: Id(),
      client: Type.String(),
      client_name: Type.String(),
      client_uri: Nullable(Type.String()),
      first_party: Type.Boolean(),
      scopes: Type.Array(Type.String()),
      scope_descriptions: Type.Record(Type.String(), Type.String()),
      created_at: Time(),
      last_used_at: Nullable(Time()),
      _links: links,
    },
    strict,
  ),
);

export const grantRoutes = {
  list: route({
    id: 'list_account_grants',
    method: 'get',
    path: '/accounts/{id}/grants',
    tag,
    summary: 'List the grants of an account, newest first',
    admission: machine(readAccountsScope),
    parameters: [
      idParameter('account'),
      ...pageParameters,
      queryParameter(
        'first_party',
        'Only grants of the server’s own apps, such as the console (`true`), or of all others (`false`, the default).',
        Type.Boolean(),
      ),
    ],
    responses: page('A page of grants.', AccountGrant),
  }),
  read: route({
    id: 'read_account_grant',
    method: 'get',
    path: '/grants/{id}',
    tag,
    summary: 'Read a grant of a user',
    admission: machine(readAccountsScope),
    parameters: [idParameter('grant')],
    responses: ok('The grant.', AccountGrant),
  }),
  withdraw: route({
    id: 'withdraw_account_grant',
    method: 'delete',
    path: '/grants/{id}',
    tag,
    summary: 'Withdraw a grant on behalf of its user',
    description: 'Refused for local accounts (409 `local-account`) and administrators (409 `administrator`).',
    admission: machine(writeAccountsScope),
    parameters: [idParameter('grant')],
    responses: { 204: { description: 'Withdrawn.' } },
    problems: [409],
  }),
};

export function registerAccountGrants(options: AccountApiOptions): void {
  const { db, scopes } = options;
  const show = (row: GrantRow) => represent(row, scopes);

  serve(options, grantRoutes.list, async ({ request, reply, params }) => {
    const page = readPage(request, ['first_party']);
    const isFirstParty = readFlag(page, 'first_party') ?? false;
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const { id } = await requireAccount(db, params.id);
    const found = await listGrants(db, id, isFirstParty, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, show, (row) => row.id);
  });

  serve(options, grantRoutes.read, async ({ params }) => show(await requireGrant(db, params.id)));

  serve(options, grantRoutes.withdraw, async ({ reply, caller, params }) => {
    const { id, account_id: accountId } = await requireGrant(db, params.id);
    requireControl(await requireAccount(db, accountId));
    // The application withdraws on behalf of its user.
    if (!(await withdrawGrant(db, id, 'user', actorName(caller)))) throw notFound();
    return reply.code(204).send();
  });
}

/** Lists grants, newest first. @param isFirstParty those of the server's own apps instead of all others */
async function listGrants(
  db: Database,
  accountId: string,
  isFirstParty: boolean,
  count: number,
  after: string | null,
): Promise<GrantRow[]> {
  const next = after === null ? sql`` : sql`and g.id < ${after}`;
  const { rows } = await sql<GrantRow>`
    ${selected} where g.account_id = ${accountId} and g.withdrawn_at is null
      and (g.client_id = any(${ownClientIds}::text[])) = ${isFirstParty} ${next}
    order by g.id desc limit ${count}`.execute(db);
  return rows;
}

async function requireGrant(db: Database, id: string): Promise<GrantRow> {
  const { rows } = isId(id)
    ? await sql<GrantRow>`${selected} where g.id = ${id} and g.withdrawn_at is null`.execute(db)
    : { rows: [] };
  if (rows[0] === undefined) throw notFound();
  return rows[0];
}

function notFound(): Problem {
  return new Problem(404, 'Grant not found.');
}

function represent(row: GrantRow, catalogue: ScopeCatalogue): Record<string, unknown> {
  return {
    id: row.id,
    account: row.account_id,
    client: row.client_id,
    client_name: row.client_name ?? row.client_id,
    client_uri: row.client_uri,
    first_party: isOwnClient(row.client_id),
    scopes: row.scopes,
    // The texts that the user consented to.
    scope_descriptions: describeScopes(row.scopes, catalogue),
    created_at: row.created_at.toISOString(),
    last_used_at: row.last_used_at?.toISOString() ?? null,
    _links: { self: { href: `/grants/${row.id}` }, account: { href: `/accounts/${row.account_id}` } },
  };
}

/** The descriptions of scopes as the consent page shows them. */
export function describeScopes(names: readonly string[], catalogue: ScopeCatalogue): Record<string, string> {
  return Object.fromEntries(
    names.map((name) => {
      const known = catalogue.get(name) ?? openidScopes.find((scope) => scope.name === name);
      return [name, known?.description ?? name];
    }),
  );
}
