/** `/accounts/<id>/grants` and `/grants/<id>`: the data for a "connected apps" page of the application. */

import { sql } from 'kysely';
import { actorName } from '../apps/actor.ts';
import { isOwnClient, ownClientIds } from '../clients/own_clients.ts';
import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { withdrawGrant } from '../grants/grant.ts';
import {
  openidScopes,
  readAccountsScope,
  type ScopeCatalogue,
  writeAccountsScope,
} from '../grants/scopes.ts';
import { readFlag, readPage, sendPage } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import { requireAccount, requireControl } from './account_routes.ts';
import { type AccountApiOptions, machineGuard } from './machine_guard.ts';

interface IdRoute {
  Params: { id: string };
}

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

export function registerAccountGrants(options: AccountApiOptions): void {
  const { api, db, scopes } = options;
  const reader = machineGuard(options, readAccountsScope);
  const writer = machineGuard(options, writeAccountsScope);
  const show = (row: GrantRow) => represent(row, scopes);

  api.get<IdRoute>('/accounts/:id/grants', async (request, reply) => {
    await reader(request);
    const page = readPage(request, ['first_party']);
    const isFirstParty = readFlag(page, 'first_party') ?? false;
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const { id } = await requireAccount(db, request.params.id);
    const found = await listGrants(db, id, isFirstParty, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, show, (row) => row.id);
  });

  api.get<IdRoute>('/grants/:id', async (request) => {
    await reader(request);
    return show(await requireGrant(db, request.params.id));
  });

  api.delete<IdRoute>('/grants/:id', async (request, reply) => {
    const actor = await writer(request);
    const { id, account_id: accountId } = await requireGrant(db, request.params.id);
    requireControl(await requireAccount(db, accountId));
    // The application withdraws on behalf of its user.
    if (!(await withdrawGrant(db, id, 'user', actorName(actor)))) throw notFound();
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
