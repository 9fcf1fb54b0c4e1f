/**
 * `/accounts`: accounts, for the application whose users they are. The application identifies its users by its own user
 * ids (`external_id`) and sends one or up to 1,000 per request. Missing properties stay unchanged.
 *
 * An e-mail address never links accounts: an external account is separate from another account with the same address.
 */

import { sql } from 'kysely';
import Type from 'typebox';
import { type AccountRow, accountColumns } from '../../accounts/account.ts';
import {
  changeAccounts,
  controlRejection,
  deleteAccount,
  type ExternalAccount,
  findExternalAccounts,
  putExternalAccounts,
  type Rejection,
} from '../../accounts/external_account.ts';
import { lockOwnedApps, suspendAbandonedApps } from '../../apps/abandoned.ts';
import { isId } from '../../crypto/ids.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { type Actor, actAs } from '../../grants/actor.ts';
import { withAccountHold } from '../../grants/delivery_hold.ts';
import { readAccountsScope, writeAccountsScope } from '../../grants/scopes.ts';
import {
  idParameter,
  jsonBody,
  keyParameter,
  links,
  mergePatchBody,
  ok,
  page,
  pageParameters,
  pathParameter,
  queryParameter,
} from '../../http/describe.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, named, strict } from '../../http/schema.ts';
import { endSessions } from '../../oauth/storage/end_sessions.ts';
import { machine } from '../admission.ts';
import { route, serve } from '../route.ts';
import { type AccountApiOptions, idempotencyNamespace, tag } from './options.ts';
import {
  Account,
  AccountChange,
  accountsMax,
  ExternalAccounts,
  ExternalId,
  readExternalAccount,
  readExternalId,
  readMembers,
} from './schemas.ts';

const reads = machine(readAccountsScope);
const writes = machine(writeAccountsScope);
const id = idParameter('account');
const example = { external_id: 'user-4711', email: 'ann@example.com', email_verified: true, name: 'Ann' };
const keep = 'Missing properties stay unchanged; null removes a value.';
const operatorDecides =
  '`disabled: false` is rejected for an account that the operator disabled (403 `disabled-by-operator`), and a change of the address or of `disabled` for an administrator (409 `administrator`).';
const noLink =
  'Email addresses do not link accounts. Several accounts may have the same address, and the address of an external account cannot be used to sign in at Nuncio.';

const PutAccounts = named(
  'PutAccounts',
  Type.Object(
    {
      items: Type.Array(
        Type.Object({ id: Id(), external_id: Type.String(), is_new: Type.Boolean(), _links: links }, strict),
        { maxItems: accountsMax },
      ),
    },
    strict,
  ),
);

export const accountRoutes = {
  list: route({
    id: 'list_all_accounts',
    method: 'get',
    path: '/accounts',
    tag,
    summary: 'List accounts, or find one by its external id',
    admission: reads,
    parameters: [
      ...pageParameters,
      queryParameter(
        'external_id',
        'Only the account with this external id. Must match exactly.',
        ExternalId(),
      ),
    ],
    responses: page('A page of accounts.', Account),
  }),
  put: route({
    id: 'put_accounts',
    method: 'post',
    path: '/accounts',
    tag,
    summary: 'Create or change up to 1,000 accounts',
    description: `The body is one account or an array. Either all changes are made or none. ${keep} ${operatorDecides} ${noLink}`,
    admission: writes,
    parameters: [keyParameter],
    body: jsonBody(ExternalAccounts, [example]),
    responses: ok('The accounts in the order of the request.', PutAccounts, ['Idempotency-Replayed']),
    problems: [409],
  }),
  putExternal: route({
    id: 'put_external_account',
    method: 'put',
    path: '/accounts/external/{external_id}',
    tag,
    summary: 'Create or change an account by its external id',
    description: `Percent-encode the external id in the path. A path cannot contain the external ids \`.\` and \`..\`: use \`POST /accounts\` for these. ${keep} ${operatorDecides} ${noLink}`,
    admission: writes,
    parameters: [pathParameter('external_id', 'The user id in the application.', ExternalId())],
    body: jsonBody(AccountChange, { email: 'ann@example.com', email_verified: true, name: 'Ann' }),
    responses: {
      200: { description: 'The account existed.', schema: Account },
      201: { description: 'The account was created.', schema: Account, headers: ['Location'] },
    },
    problems: [409],
  }),
  read: route({
    id: 'read_any_account',
    method: 'get',
    path: '/accounts/{id}',
    tag,
    summary: 'Read the account of a user',
    admission: reads,
    parameters: [id],
    responses: ok('The account.', Account),
  }),
  change: route({
    id: 'change_account',
    method: 'patch',
    path: '/accounts/{id}',
    tag,
    summary: 'Change an account',
    description:
      'Disabling an account ends its sessions and withdraws its grants. The address and the state of a local account cannot be changed (409 `local-account`), nor those of an administrator (409 `administrator`). An account that the operator disabled cannot be enabled (403 `disabled-by-operator`).',
    admission: writes,
    parameters: [id],
    body: mergePatchBody(AccountChange, { disabled: true }),
    responses: ok('The changed account.', Account),
    problems: [409],
  }),
  delete: route({
    id: 'delete_account',
    method: 'delete',
    path: '/accounts/{id}',
    tag,
    summary: 'Delete an account',
    description:
      'Refused for local accounts (409 `local-account`) and administrators (409 `administrator`). The account is disabled first, which withdraws its grants and ends its sessions. Then one transaction ends its subscriptions and deletes its resources, address, name and external id; if it fails, the account remains disabled: delete it again. Apps without another owner are suspended. No delivery for the account starts after that. Events that were published for it are kept until they are 30 days old; erase the body of one with `DELETE /events/{id}/body`. The audit log keeps the account id.',
    admission: writes,
    parameters: [id],
    responses: { 204: { description: 'Deleted.' } },
    problems: [409],
  }),
};

/** Reads, creates and replaces accounts. */
export function registerAccounts(options: AccountApiOptions): void {
  const { db } = options;
  registerAccountChanges(options);

  serve(options, accountRoutes.list, async ({ request, reply }) => {
    const page = readPage(request, ['external_id']);
    const { external_id: externalId } = page.parameters;
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const wanted = externalId === undefined ? null : readExternalId(externalId, 'external_id');
    const found = await listAccounts(db, wanted, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, represent, ({ id }) => id);
  });

  serve(
    options,
    accountRoutes.put,
    async ({ request, reply, caller, body }) => {
      const given = (Array.isArray(body) ? body : [body]).map(readExternalAccount);
      return sendIdempotent(options, request, reply, idempotencyNamespace(caller), async (within) => {
        const items = await put(within, caller, given);
        const shown = items.map(({ id, externalId, isNew }) => ({
          id,
          external_id: externalId,
          is_new: isNew,
          _links: linksOf(id),
        }));
        return { status: 200, headers: {}, body: JSON.stringify({ items: shown }) };
      });
    },
    (body, errors) => {
      if (!Array.isArray(body)) return;
      // Without errors, so all items are accounts.
      const ids = (body as { external_id: string | number }[]).map(({ external_id: externalId }) =>
        String(externalId),
      );
      for (const [index, externalId] of ids.entries()) {
        if (ids.indexOf(externalId) === index) continue;
        errors.add([index, 'external_id'], 'occurs twice in the array', 'duplicate');
      }
    },
  );

  serve(options, accountRoutes.putExternal, async ({ reply, caller, params, body }) => {
    const externalId = readExternalId(params.external_id, 'The external id in the path');
    const members = readMembers(body);
    const given = [{ externalId, ...members }];
    const known =
      members.isDisabled === true && (await findExternalAccounts(db, [externalId])).get(externalId);
    const [account] = known
      ? await withAccountHold(db, known, (tx) => put(tx, caller, given))
      : await put(db, caller, given);
    const { id, isNew } = account as { id: string; isNew: boolean };
    const row = await requireAccount(db, id);
    if (isNew) reply.code(201).header('location', `/accounts/${id}`);
    return reply.send(represent(row));
  });

  serve(options, accountRoutes.read, async ({ params }) => represent(await requireAccount(db, params.id)));
}

/** Changes and deletes accounts by id. */
function registerAccountChanges(options: AccountApiOptions): void {
  const { db } = options;

  serve(options, accountRoutes.change, async ({ caller, params, body }) => {
    const members = readMembers(body);
    const { id } = await requireAccount(db, params.id);
    const transact = members.isDisabled === true ? withAccountHold : inPlainTransaction;
    await transact(db, id, async (tx) => {
      await actAs(tx, caller);
      const changed = await changeAccounts(tx, [{ id, ...members }]);
      if (changed === undefined) throw accountNotFound();
      if (changed.rejected !== null) throw rejectionProblem(changed.rejected.reason);
      await endSessions(tx, changed.disabled);
    });
    return represent(await requireAccount(db, id));
  });

  serve(options, accountRoutes.delete, async ({ reply, caller, params }) => {
    const { id } = await requireAccount(db, params.id);
    // First, because the deletion takes long if the account has very much, and what its browsers and apps send would wait for its rows.
    await withAccountHold(db, id, async (tx) => {
      requireControl(await requireAccount(tx, id, true));
      await actAs(tx, caller);
      await changeAccounts(tx, [{ id, isDisabled: true }]);
      await endSessions(tx, [id]);
    });
    const isDeleted = await withAccountHold(db, id, async (tx) => {
      requireControl(await requireAccount(tx, id, true));
      await actAs(tx, caller);
      await lockOwnedApps(tx, id);
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

function accountNotFound(): Problem {
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
