/** `/admin/accounts`: finding accounts by e-mail address, disabling and enabling them. */

import { sql } from 'kysely';
import Type from 'typebox';
import { disableAccount, enableAccount } from '../../accounts/account.ts';
import { type ConnectedIdentity, identitiesMax, listIdentities } from '../../accounts/upstream/identity.ts';
import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { actAs } from '../../grants/actor.ts';
import { withAccountHold } from '../../grants/delivery_hold.ts';
import { emptyBody, idParameter, links, queryParameter } from '../../http/describe.ts';
import { readPage, sendPage, textCursor } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';
import { endSessions } from '../../oauth/storage/end_sessions.ts';
import { serve } from '../route.ts';
import { type AdminOptions, actRoute, listRoute, readRoute } from './options.ts';
import { readChoice, readTextParameter } from './parameters.ts';
import { scanPage } from './scan_page.ts';

interface AccountRow {
  id: string;
  external_id: string | null;
  email: string | null;
  name: string;
  is_admin: boolean;
  created_at: Date;
  disabled_at: Date | null;
}

const columns = sql`id, external_id, email, name, is_admin, created_at, disabled_at`;

const identityMembers = {
  provider: Type.String(),
  issuer: Type.String(),
  subject: Type.String(),
  label: Type.String(),
  created_at: Time(),
  last_used_at: Time(),
};

const AdminAccount = named(
  'AdminAccount',
  Type.Object(
    {
      id: Id(),
      external_id: Nullable(Type.String()),
      email: Nullable(Type.String()),
      name: Type.String(),
      is_admin: Type.Boolean(),
      state: StringEnum('active', 'disabled'),
      created_at: Time(),
      disabled_at: Nullable(Time()),
      // Only where one account is read.
      identities: Type.Optional(
        Type.Array(Type.Object(identityMembers, strict), { maxItems: identitiesMax }),
      ),
      _links: links,
    },
    strict,
  ),
);

const id = idParameter('account');

export const accountRoutes = {
  list: listRoute('list_accounts', '/admin/accounts', 'List accounts by e-mail address', AdminAccount, [
    queryParameter(
      'email',
      'Only accounts whose address begins with this text.',
      Type.String({ minLength: 1, maxLength: 254 }),
    ),
    queryParameter('state', 'Only accounts in this state.', StringEnum('active', 'disabled')),
  ]),
  read: readRoute('read_account', '/admin/accounts/{id}', 'Read an account', AdminAccount, [id]),
  disable: actRoute(
    'disable_account',
    '/admin/accounts/{id}/disable',
    'Disable an account: ends its sessions and withdraws its grants',
    AdminAccount,
    id,
    emptyBody,
  ),
  enable: actRoute(
    'enable_account',
    '/admin/accounts/{id}/enable',
    'Enable an account; its grants stay withdrawn',
    AdminAccount,
    id,
    emptyBody,
  ),
};

export function registerAdminAccounts(options: AdminOptions): void {
  const { db } = options;

  serve(options, accountRoutes.list, async ({ request, reply }) => {
    const page = readPage(request, ['email', 'state']);
    const prefix = readTextParameter(page.parameters, 'email', 254)?.toLowerCase() ?? null;
    const state = readChoice(page.parameters, 'state', ['active', 'disabled']);
    const read = (after: string | null, count: number) =>
      listAccounts(db, prefix, state === 'disabled', after, count);
    const matches = state === 'active' ? (row: AccountRow) => row.disabled_at === null : null;
    const key = (row: AccountRow) => `${row.email ?? highestKey}\n${row.id}`;
    const after = textCursor(page);
    if (after !== null && !isCursor(after)) throw page.invalid();
    const { found, more } = await scanPage(read, matches, key, { ...page, after });
    return sendPage(request, reply, page, found, represent, key, more);
  });

  serve(options, accountRoutes.read, async ({ params }) => {
    const row = await requireAccount(db, params.id);
    return { ...represent(row), identities: (await listIdentities(db, row.id)).map(representIdentity) };
  });

  serve(options, accountRoutes.disable, async ({ caller, params }) => {
    const { id } = await requireAccount(db, params.id);
    if (id === caller.accountId) {
      throw new Problem(409, 'Administrators cannot disable their own account.', { code: 'own-account' });
    }
    await withAccountHold(db, id, async (tx) => {
      await actAs(tx, caller);
      if (await disableAccount(tx, id)) await endSessions(tx, id);
    });
    return represent(await requireAccount(db, id));
  });

  serve(options, accountRoutes.enable, async ({ caller, params }) => {
    const { id } = await requireAccount(db, params.id);
    await db.transaction().execute(async (tx) => {
      await actAs(tx, caller);
      await enableAccount(tx, id);
    });
    return represent(await requireAccount(db, id));
  });
}

function isCursor(after: string): boolean {
  const [, id = '', ...others] = after.split('\n');
  return isId(id) && others.length === 0;
}

/** Sort key of accounts without an address. */
const highestKey = String.fromCodePoint(0x10ffff);

/** Lists accounts by address in byte order, those without one last. @param after address and id, separated by a newline */
async function listAccounts(
  db: Database,
  prefix: string | null,
  onlyDisabled: boolean,
  after: string | null,
  count: number,
): Promise<AccountRow[]> {
  const disabled = onlyDisabled ? sql`and disabled_at is not null` : sql``;
  const from =
    prefix === null ? sql`` : sql`and ${sortedBy} >= ${prefix} and ${sortedBy} < ${prefix} || chr(1114111)`;
  const [address, id] = after?.split('\n') ?? [];
  const next = address === undefined ? sql`` : sql`and (${sortedBy}, id) > (${address}, ${id}::uuid)`;
  const { rows } = await sql<AccountRow>`
    select ${columns} from accounts where true ${disabled} ${from} ${next}
    order by ${sortedBy}, id limit ${count}`.execute(db);
  return rows;
}

const sortedBy = sql`(coalesce(email, chr(1114111))) collate "C"`;

async function requireAccount(db: Database, id: string): Promise<AccountRow> {
  const { rows } = isId(id)
    ? await sql<AccountRow>`select ${columns} from accounts where id = ${id}`.execute(db)
    : { rows: [] };
  if (rows[0] === undefined) throw new Problem(404, 'Account not found.');
  return rows[0];
}

function represent(row: AccountRow): Record<string, unknown> {
  const self = `/admin/accounts/${row.id}`;
  const change = row.disabled_at === null ? 'disable' : 'enable';
  return {
    id: row.id,
    external_id: row.external_id,
    email: row.email,
    name: row.name,
    is_admin: row.is_admin,
    state: row.disabled_at === null ? 'active' : 'disabled',
    created_at: row.created_at.toISOString(),
    disabled_at: row.disabled_at?.toISOString() ?? null,
    _links: {
      self: { href: self },
      grants: { href: `/admin/grants?account=${row.id}` },
      audit: { href: `/admin/audit?account=${row.id}` },
      [change]: { href: `${self}/${change}`, method: 'POST' },
    },
  };
}

function representIdentity(identity: ConnectedIdentity): Record<string, unknown> {
  const { provider, issuer, subject, label, createdAt, lastUsedAt } = identity;
  return {
    provider,
    issuer,
    subject,
    label,
    created_at: createdAt.toISOString(),
    last_used_at: lastUsedAt.toISOString(),
  };
}
