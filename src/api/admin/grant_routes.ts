/** `/admin/grants`: listing and withdrawing grants. */

import { sql } from 'kysely';
import Type from 'typebox';
import { isOwnClient } from '../../clients/own_clients.ts';
import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { actorName } from '../../grants/actor.ts';
import { withdrawGrant } from '../../grants/grant.ts';
import { idParameter, links, queryParameter } from '../../http/describe.ts';
import { readFlag, readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, strict, Time } from '../../http/schema.ts';
import { route, serve } from '../route.ts';
import { type AdminOptions, administration, listRoute, readRoute } from './options.ts';
import { accountParameter, clientParameter, readIdParameter, readTextParameter } from './parameters.ts';
import { scanPage } from './scan_page.ts';

interface GrantRow {
  id: string;
  account_id: string;
  client_id: string;
  scopes: string[];
  created_at: Date;
  last_used_at: Date | null;
  withdrawn_at: Date | null;
}

const columns = sql`id, account_id, client_id, scopes, created_at, last_used_at, withdrawn_at`;

const AdminGrant = named(
  'AdminGrant',
  Type.Object(
    {
      id: Id(),
      account: Id(),
      client: Type.String(),
      first_party: Type.Boolean(),
      scopes: Type.Array(Type.String()),
      created_at: Time(),
      last_used_at: Nullable(Time()),
      _links: links,
    },
    strict,
  ),
);

export const grantRoutes = {
  list: listRoute('list_all_grants', '/admin/grants', 'List active grants', AdminGrant, [
    accountParameter,
    clientParameter,
    queryParameter(
      'first_party',
      'Only grants of the server’s own apps, such as the console (`true`), or of all others (`false`). Default: `false`, or what `client` names.',
      Type.Boolean(),
    ),
  ]),
  read: readRoute('read_any_grant', '/admin/grants/{id}', 'Read a grant', AdminGrant, [idParameter('grant')]),
  withdraw: route({
    ...administration,
    id: 'withdraw_grant',
    method: 'delete',
    path: '/admin/grants/{id}',
    summary: 'Withdraw a grant',
    parameters: [idParameter('grant')],
    responses: { 204: { description: 'Withdrawn.' } },
  }),
};

export function registerAdminGrants(options: AdminOptions): void {
  const { db } = options;

  serve(options, grantRoutes.list, async ({ request, reply }) => {
    const page = readPage(request, ['account', 'client', 'first_party']);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const account = readIdParameter(page.parameters, 'account');
    const client = readTextParameter(page.parameters, 'client', 2_048);
    const flag = readFlag(page, 'first_party');
    // Naming one of the server's own apps asks for its grants.
    const isFirstParty = flag ?? (client !== null && isOwnClient(client));
    const read = (after: string | null, count: number) => listGrants(db, account, client, after, count);
    const matches = (row: GrantRow) =>
      row.withdrawn_at === null &&
      (client === null || row.client_id === client) &&
      isOwnClient(row.client_id) === isFirstParty;
    const { found, more } = await scanPage(read, matches, ({ id }) => id, page);
    return sendPage(request, reply, page, found, represent, ({ id }) => id, more);
  });

  serve(options, grantRoutes.read, async ({ params }) => represent(await requireGrant(db, params.id)));

  serve(options, grantRoutes.withdraw, async ({ reply, caller, params }) => {
    const { id } = await requireGrant(db, params.id);
    if (!(await withdrawGrant(db, id, 'operator', actorName(caller)))) throw notFound();
    return reply.code(204).send();
  });
}

/** Lists grants, newest first. */
async function listGrants(
  db: Database,
  account: string | null,
  client: string | null,
  after: string | null,
  count: number,
): Promise<GrantRow[]> {
  // There are partial indexes of active grants by account and by client. Without a filter, the primary key is scanned.
  const of =
    account !== null
      ? sql`and account_id = ${account} and withdrawn_at is null`
      : client !== null
        ? sql`and client_id = ${client} and withdrawn_at is null`
        : sql``;
  const next = after === null ? sql`` : sql`and id < ${after}`;
  const { rows } = await sql<GrantRow>`
    select ${columns} from grants where true ${of} ${next} order by id desc limit ${count}`.execute(db);
  return rows;
}

async function requireGrant(db: Database, id: string): Promise<GrantRow> {
  const { rows } = isId(id)
    ? await sql<GrantRow>`
        select ${columns} from grants where id = ${id} and withdrawn_at is null`.execute(db)
    : { rows: [] };
  if (rows[0] === undefined) throw notFound();
  return rows[0];
}

function notFound(): Problem {
  return new Problem(404, 'Grant not found.');
}

function represent(row: GrantRow): Record<string, unknown> {
  return {
    id: row.id,
    account: row.account_id,
    client: row.client_id,
    first_party: isOwnClient(row.client_id),
    scopes: row.scopes,
    created_at: row.created_at.toISOString(),
    last_used_at: row.last_used_at?.toISOString() ?? null,
    _links: { self: { href: `/admin/grants/${row.id}` } },
  };
}
