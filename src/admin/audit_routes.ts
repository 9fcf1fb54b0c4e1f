/** `/admin/audit`: the audit log, the newest first, by account, client, kind and time. */

import { readAuditPage } from '../audit/audit_page.ts';
import { readPage, sendPage } from '../http/page.ts';
import { lookThrough } from './look_through.ts';
import { type AdminOptions, adminGuard } from './options.ts';
import { readIdParameter, readTextParameter, readTimeParameter } from './parameters.ts';

type Entry = Awaited<ReturnType<typeof readAuditPage>>[number];

export function registerAdminAudit(options: AdminOptions): void {
  const { api, db } = options;
  const admin = adminGuard(options);

  api.get('/admin/audit', async (request, reply) => {
    await admin(request);
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
    const fits = (entry: Entry) =>
      (kind === null || entry.kind.startsWith(kind)) &&
      (account === null || entry.accountId === account) &&
      (client === null || entry.clientId === client) &&
      (since === null || entry.at >= since) &&
      (until === null || entry.at < until);
    const hasFilter = [kind, account, client, since, until].some((value) => value !== null);
    const looked = await lookThrough(read, hasFilter ? fits : null, ({ id }) => id, page);
    const { found } = looked;
    // Entries are in the order of their time but for a moment: past that nothing of the stretch comes any more.
    const isPast = since !== null && looked.more !== null && (await isOlder(read, looked.more, since));
    return sendPage(request, reply, page, found, represent, ({ id }) => id, isPast ? null : looked.more);
  });
}

/** Milliseconds by which an entry may be out of order. */
const disorderMs = 60_000;

async function isOlder(
  read: (after: string | null, count: number) => Promise<Entry[]>,
  after: string,
  since: Date,
): Promise<boolean> {
  const [next] = await read(after, 1);
  return next === undefined || next.at.getTime() < since.getTime() - disorderMs;
}

function represent(entry: Entry): Record<string, unknown> {
  return {
    id: entry.id,
    at: entry.at.toISOString(),
    kind: entry.kind,
    actor: entry.actor,
    account: entry.accountId,
    email: entry.email,
    client: entry.clientId,
    grant: entry.grantId,
    details: entry.details,
  };
}
