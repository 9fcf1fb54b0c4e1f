/** `/admin/audit`: the audit log, newest first, filtered by account, client, kind and time. */

import Type from 'typebox';
import { readAuditPage } from '../../audit/audit_page.ts';
import { isId } from '../../crypto/ids.ts';
import { queryParameter } from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Id, Nullable, named, strict, Time } from '../../http/schema.ts';
import { serve } from '../route.ts';
import { AccountLabel, type Names, readNames } from './names.ts';
import { type AdminOptions, listRoute } from './options.ts';
import {
  accountParameter,
  clientParameter,
  rangeParameters,
  readIdParameter,
  readTextParameter,
  readTimeParameter,
} from './parameters.ts';
import { scanPage } from './scan_page.ts';

type Entry = Awaited<ReturnType<typeof readAuditPage>>[number];

const AuditEntry = named(
  'AuditEntry',
  Type.Object(
    {
      id: Type.String(),
      at: Time(),
      kind: Type.String(),
      actor: Nullable(Type.String()),
      actor_name: Nullable(Type.String()),
      account: Nullable(Id()),
      account_name: AccountLabel(),
      email: Nullable(Type.String()),
      client: Nullable(Type.String()),
      client_name: Nullable(Type.String()),
      grant: Nullable(Id()),
      details: Type.Object({}),
    },
    strict,
  ),
);

export const auditRoutes = {
  list: listRoute('list_audit_entries', '/admin/audit', 'List entries of the audit log', AuditEntry, [
    queryParameter(
      'kind',
      'Only kinds that begin with this text.',
      Type.String({ minLength: 1, maxLength: 100 }),
    ),
    accountParameter,
    clientParameter,
    ...rangeParameters('entries written'),
  ]),
};

export function registerAdminAudit(options: AdminOptions): void {
  const { db } = options;

  serve(options, auditRoutes.list, async ({ request, reply }) => {
    const page = readPage(request, ['kind', 'account', 'client', 'since', 'until']);
    if (page.after !== null && !/^\d{1,18}$/.test(page.after)) throw page.invalid();
    const kind = readTextParameter(page.parameters, 'kind', 100);
    const account = readIdParameter(page.parameters, 'account');
    const client = readTextParameter(page.parameters, 'client', 2_048);
    const since = readTimeParameter(page.parameters, 'since');
    const until = readTimeParameter(page.parameters, 'until');
    const withTokens = kind !== null && 'token.'.startsWith(kind.slice(0, 6));
    const read = (after: string | null, count: number) =>
      readAuditPage(db, { account, client, withTokens, until }, after, count);
    const matches = (entry: Entry) =>
      (kind === null || entry.kind.startsWith(kind)) &&
      (account === null || entry.accountId === account) &&
      (client === null || entry.clientId === client) &&
      (since === null || entry.at >= since) &&
      (until === null || entry.at < until);
    const hasFilter = [kind, account, client, since, until].some((value) => value !== null);
    const scanned = await scanPage(read, hasFilter ? matches : null, ({ id }) => id, page);
    const { found } = scanned;
    // Entries are almost sorted by time. Once they are clearly older than `since`, no further page is needed.
    const isPast = since !== null && scanned.more !== null && (await isOlder(read, scanned.more, since));
    const names = await readNames(
      db,
      found.flatMap(({ accountId, actor }) => [accountId, accountOf(actor)]),
      found.flatMap(({ clientId, actor }) => [clientId, clientOf(actor)]),
    );
    const more = isPast ? null : scanned.more;
    return sendPage(
      request,
      reply,
      page,
      found,
      (entry) => represent(entry, names),
      ({ id }) => id,
      more,
    );
  });
}

/** Maximum milliseconds by which entries are out of order. */
const disorderMs = 60_000;

async function isOlder(
  read: (after: string | null, count: number) => Promise<Entry[]>,
  after: string,
  since: Date,
): Promise<boolean> {
  const [next] = await read(after, 1);
  return next === undefined || next.at.getTime() < since.getTime() - disorderMs;
}

/** An actor is an account's id, `client:` and a client's id, or something else, such as the command line. */
const clientPrefix = 'client:';

function accountOf(actor: string | null): string | null {
  return actor !== null && isId(actor) ? actor : null;
}

function clientOf(actor: string | null): string | null {
  return actor?.startsWith(clientPrefix) === true ? actor.slice(clientPrefix.length) : null;
}

function represent(entry: Entry, names: Names): Record<string, unknown> {
  return {
    id: entry.id,
    at: entry.at.toISOString(),
    kind: entry.kind,
    actor: entry.actor,
    actor_name: names.account(accountOf(entry.actor)) ?? names.client(clientOf(entry.actor)),
    account: entry.accountId,
    account_name: names.account(entry.accountId),
    email: entry.email,
    client: entry.clientId,
    client_name: names.client(entry.clientId),
    grant: entry.grantId,
    details: entry.details,
  };
}
