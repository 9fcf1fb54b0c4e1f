/**
 * `/accounts`: accounts, for the application whose users they are. The application identifies its users by its own user
 * ids (`external_id`) and sends one or up to 1,000 per request. Missing properties stay unchanged.
 *
 * An e-mail address never links accounts: an external account is separate from another account with the same address.
 */

import { sql } from 'kysely';
import { type AccountRow, accountColumns } from '../accounts/account.ts';
import {
  changeAccounts,
  controlRejection,
  deleteAccount,
  type ExternalAccount,
  findExternalAccounts,
  putExternalAccounts,
  type Rejection,
} from '../accounts/external_account.ts';
import { lockOwnedApps, suspendAbandonedApps } from '../apps/abandoned.ts';
import { type Actor, actAs } from '../apps/actor.ts';
import { isId } from '../crypto/ids.ts';
import { type Database, inTransaction, type Transaction } from '../database/database.ts';
import { withAccountHold } from '../grants/delivery_hold.ts';
import { readAccountsScope, writeAccountsScope } from '../grants/scopes.ts';
import { jsonPatchType } from '../http/api.ts';
import { sendIdempotent } from '../http/idempotent_post.ts';
import { readPage, sendPage } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import { endSessions } from '../oauth/storage/end_sessions.ts';
import { type AccountApiOptions, idempotencyNamespace, machineGuard } from './machine_guard.ts';
import { readExternalAccounts, readExternalId, readMembers } from './members.ts';

interface IdRoute {
  Params: { id: string };
}

interface ExternalRoute {
  Params: { external_id: string };
}

/** Reads, creates and replaces accounts. */
export function registerAccounts(options: AccountApiOptions): void {
  const { api, db } = options;
  const reader = machineGuard(options, readAccountsScope);
  const writer = machineGuard(options, writeAccountsScope);
  registerAccountChanges(options, writer);

  api.get('/accounts', async (request, reply) => {
    await reader(request);
    const page = readPage(request, ['external_id']);
    const { external_id: externalId } = page.parameters;
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const wanted = externalId === undefined ? null : readExternalId(externalId, 'external_id');
    const found = await listAccounts(db, wanted, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, represent, ({ id }) => id);
  });

  api.post('/accounts', async (request, reply) => {
    const actor = await writer(request);
    const given = readExternalAccounts(request.body);
    return sendIdempotent(options, request, reply, idempotencyNamespace(actor), async (within) => {
      const items = await put(within, actor, given);
      const body = {
        items: items.map(({ id, externalId, isNew }) => ({
          id,
          external_id: externalId,
          is_new: isNew,
          _links: linksOf(id),
        })),
      };
      return { status: 200, headers: {}, body: JSON.stringify(body) };
    });
  });

  api.put<ExternalRoute>('/accounts/external/:external_id', async (request, reply) => {
    const actor = await writer(request);
    const externalId = readExternalId(request.params.external_id, 'The external id in the path');
    const members = readMembers(request.body);
    const given = [{ externalId, ...members }];
    const known =
      members.isDisabled === true && (await findExternalAccounts(db, [externalId])).get(externalId);
    const [account] = known
      ? await withAccountHold(db, known, (tx) => put(tx, actor, given))
      : await put(db, actor, given);
    const { id, isNew } = account as { id: string; isNew: boolean };
    const row = await requireAccount(db, id);
    if (isNew) reply.code(201).header('location', `/accounts/${id}`);
    return reply.send(represent(row));
  });

  api.get<IdRoute>('/accounts/:id', async (request) => {
    await reader(request);
    return represent(await requireAccount(db, request.params.id));
  });
}

/** Changes and deletes accounts by id. */
function registerAccountChanges(
  { api, db }: AccountApiOptions,
  writer: ReturnType<typeof machineGuard>,
): void {
  api.patch<IdRoute>('/accounts/:id', async (request) => {
    const actor = await writer(request);
    if (request.headers['content-type']?.startsWith(jsonPatchType)) {
      throw new Problem(415, 'Changes of an account must be application/merge-patch+json.', {
        code: 'unsupported-media-type',
      });
    }
    const members = readMembers(request.body);
    const { id } = await requireAccount(db, request.params.id);
    const transact = members.isDisabled === true ? withAccountHold : inPlainTransaction;
    await transact(db, id, async (tx) => {
      await actAs(tx, actor);
      const changed = await changeAccounts(tx, [{ id, ...members }]);
      if (changed === undefined) throw accountNotFound();
      if (changed.rejected !== null) throw rejectionProblem(changed.rejected.reason);
      await endSessions(tx, changed.disabled);
    });
    return represent(await requireAccount(db, id));
  });

  api.delete<IdRoute>('/accounts/:id', async (request, reply) => {
    const actor = await writer(request);
    const { id } = await requireAccount(db, request.params.id);
    const isDeleted = await withAccountHold(db, id, async (tx) => {
      requireControl(await requireAccount(tx, id, true));
      await actAs(tx, actor);
      await lockOwnedApps(tx, id);
      await endSessions(tx, [id]);
      return deleteAccount(tx, id, () => suspendAbandonedApps(tx, id));
    });
    if (!isDeleted) throw accountNotFound();
    return reply.code(204).send();
  });
}

function inPlainTransaction(
  db: Database,
  _accountId: string,
  work: (tx: Transaction) => Promise<void>,
): Promise<void> {
  return db.transaction().execute(work);
}

/**
 * Creates or changes accounts of the application, all or none. Disabling several accounts at once takes no delivery hold: nodes
 * stop their deliveries when the notification arrives.
 */
async function put(
  given: Database | Transaction,
  actor: Actor,
  accounts: readonly ExternalAccount[],
): Promise<{ id: string; externalId: string; isNew: boolean }[]> {
  return inTransaction(given, async (tx) => {
    await actAs(tx, actor);
    const changed = await putExternalAccounts(tx, accounts);
    if (changed === undefined) {
      throw new Problem(409, 'One of the accounts is being deleted. Try again.', { code: 'busy' });
    }
    if (changed.rejected !== null) {
      const { id, reason } = changed.rejected;
      throw rejectionProblem(reason, changed.accounts.find((account) => account.id === id)?.externalId);
    }
    if (changed.disabled.length > 0) await endSessions(tx, changed.disabled);
    return changed.accounts;
  });
}

interface Row extends AccountRow {
  disabled_at: Date | null;
  updated_at: Date;
}

const columns = sql`${accountColumns}, accounts.disabled_at, accounts.updated_at`;

/** Lists accounts in order of creation. */
async function listAccounts(
  db: Database,
  externalId: string | null,
  count: number,
  after: string | null,
): Promise<Row[]> {
  const only = externalId === null ? sql`` : sql`and external_id = ${externalId}`;
  const next = after === null ? sql`` : sql`and id > ${after}`;
  const { rows } = await sql<Row>`
    select ${columns} from accounts where true ${only} ${next} order by id limit ${count}`.execute(db);
  return rows;
}

/** @throws Problem 404 */
export async function requireAccount(db: Database | Transaction, id: string, isLocked = false): Promise<Row> {
  const lock = isLocked ? sql`for no key update` : sql``;
  const { rows } = isId(id)
    ? await sql<Row>`select ${columns} from accounts where id = ${id} ${lock}`.execute(db)
    : { rows: [] };
  if (rows[0] === undefined) throw accountNotFound();
  return rows[0];
}

export function accountNotFound(): Problem {
  return new Problem(404, 'Account not found.');
}

/** @throws Problem 409 for an account that the application does not control */
export function requireControl(row: Pick<Row, 'is_admin' | 'external_id'>): void {
  const reason = controlRejection(row);
  if (reason !== null) throw rejectionProblem(reason);
}

const rejections: Readonly<Record<Rejection, { status: number; detail: string }>> = {
  administrator: {
    status: 409,
    detail:
      'Machine clients cannot sign in, disable, enable or delete administrators, change their address or withdraw their grants.',
  },
  'local-account': {
    status: 409,
    detail:
      'Machine clients cannot sign in, disable, enable or delete local accounts, change their address or withdraw their grants.',
  },
  'disabled-by-operator': {
    status: 403,
    detail: 'The operator disabled this account, and only the operator can enable it.',
  },
};

/** @param externalId names the account in the error, if the request contains several */
function rejectionProblem(reason: Rejection, externalId?: string): Problem {
  const { status, detail } = rejections[reason];
  const which = externalId === undefined ? '' : ` External id: ${JSON.stringify(externalId)}.`;
  return new Problem(status, `${detail}${which}`, { code: reason });
}

function represent(row: Row): Record<string, unknown> {
  return {
    id: row.id,
    external_id: row.external_id,
    email: row.email,
    email_verified: row.email_verified,
    name: row.name === '' ? null : row.name,
    disabled: row.disabled_at !== null,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    _links: linksOf(row.id),
  };
}

function linksOf(id: string): Record<string, { href: string }> {
  return { self: { href: `/accounts/${id}` }, grants: { href: `/accounts/${id}/grants` } };
}
