/** `/admin/apps`: all apps; verification and suspension. */

import { sql } from 'kysely';
import Type from 'typebox';
import { recordEntry } from '../../audit/entry.ts';
import { type Client, type ClientHead, clientColumns, clientHeadColumns } from '../../clients/client.ts';
import { lastOfPage, readClientPage } from '../../clients/client_page.ts';
import { ownClientIds } from '../../clients/own_clients.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { type Actor, actAs } from '../../grants/actor.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import { jsonBody, links, queryParameter } from '../../http/describe.ts';
import { isStorable } from '../../http/json.ts';
import { readPage, sendPage, textCursor } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Nullable, named, StringEnum, strict, Time, worded } from '../../http/schema.ts';
import { readTime } from '../../http/time.ts';
import { appNotFound } from '../apps/app_access.ts';
import { appPath, logoLink, representClient } from '../apps/representation.ts';
import { appId, appOrigins, appStates, clientMembers } from '../apps/schemas.ts';
import { route, serve } from '../route.ts';
import { type AdminOptions, actRoute, listRoute, readRoute } from './options.ts';
import { readChoice, readTextParameter } from './parameters.ts';
import { scanPage } from './scan_page.ts';

const reason = Type.Optional(Nullable(Type.String({ maxLength: 500 })));

const AdminApp = named('AdminApp', Type.Object({ ...clientMembers, _links: links }, strict));
const withReason = jsonBody(
  named('AdminReason', Type.Object({ reason }, strict)),
  { reason: 'Requested by the developer' },
  false,
);
const withVersion = jsonBody(
  named(
    'AdminVerification',
    Type.Object(
      {
        reason,
        updated_at: worded('the updated_at of the app as you reviewed it, an RFC 3339 time', Time()),
      },
      strict,
    ),
  ),
  { reason: 'Requested by the developer', updated_at: '2026-05-04T12:00:00.000Z' },
);

export const appRoutes = {
  list: listRoute('list_all_apps', '/admin/apps', 'List all apps, newest first or by name', AdminApp, [
    queryParameter('state', 'Only apps in this state.', StringEnum(...appStates)),
    queryParameter('origin', 'Only apps of this origin.', StringEnum(...appOrigins)),
    queryParameter(
      'name',
      'Only apps whose name begins with this text.',
      Type.String({ minLength: 1, maxLength: 100 }),
    ),
  ]),
  read: readRoute('read_any_app', '/admin/apps/{id}', 'Read any app', AdminApp, [appId]),
  verify: route({
    ...actRoute('verify_app', '/admin/apps/{id}/verify', 'Verify an app', AdminApp, appId, withVersion),
    description:
      '`updated_at` names the version that you reviewed. If the app has changed since, it is not verified (412). Any later change of what you reviewed ends the verification.',
    problems: [409, 412],
  }),
  unverify: actRoute(
    'unverify_app',
    '/admin/apps/{id}/unverify',
    'Remove the verification of an app',
    AdminApp,
    appId,
    withReason,
  ),
  suspend: actRoute(
    'suspend_app',
    '/admin/apps/{id}/suspend',
    'Suspend an app: it gets no tokens and no deliveries until it is reinstated',
    AdminApp,
    appId,
    withReason,
  ),
  reinstate: actRoute(
    'reinstate_app',
    '/admin/apps/{id}/reinstate',
    'Reinstate a suspended app',
    AdminApp,
    appId,
    withReason,
  ),
};

/** Actions by the last segment of the path, with the assignment and the kind of the audit entry. */
const changes = {
  verify: { set: sql`verified_at = coalesce(verified_at, now())`, kind: 'app.verified' },
  unverify: { set: sql`verified_at = null`, kind: 'app.unverified' },
  suspend: { set: sql`suspended_at = coalesce(suspended_at, now())`, kind: 'app.suspended' },
  reinstate: { set: sql`suspended_at = null`, kind: 'app.reinstated' },
} as const;
type Change = keyof typeof changes;

export function registerAdminApps(options: AdminOptions): void {
  const { db, clients } = options;

  serve(options, appRoutes.list, async ({ request, reply }) => {
    const page = readPage(request, ['state', 'origin', 'name']);
    const state = readChoice(page.parameters, 'state', appStates);
    const origin = readChoice(page.parameters, 'origin', appOrigins);
    const prefix = readTextParameter(page.parameters, 'name', 100)?.toLowerCase() ?? null;
    const after = textCursor(page);
    const isByName = prefix !== null;
    if (after !== null) readKey(after, isByName, page.invalid);
    const read = (from: string | null, count: number) =>
      listClients(db, prefix, readKey(from, isByName, page.invalid), count);
    const matches = (client: ClientHead) =>
      !ownClientIds.includes(client.id) &&
      (state === null || client.state === state) &&
      (origin === null || client.origin === origin);
    const key = (client: ClientHead) => keyOf(client, isByName);
    const { found, more } = await scanPage(read, matches, key, { ...page, after });
    const apps = await readClientPage(db, found.slice(0, page.limit));
    const last = lastOfPage(found, apps, page.limit);
    return sendPage(request, reply, page, apps, represent, key, last === undefined ? more : key(last));
  });

  serve(options, appRoutes.read, async ({ params }) => represent(await requireClient(db, params.id)));

  serve(options, appRoutes.verify, ({ caller, params, body: { reason = null, updated_at: updatedAt } }) =>
    change(caller, params.id, 'verify', { reason, expectedUpdatedAt: new Date(updatedAt) }),
  );
  for (const name of ['unverify', 'suspend', 'reinstate'] as const) {
    serve(options, appRoutes[name], ({ caller, params, body: { reason = null } }) =>
      change(caller, params.id, name, { reason, expectedUpdatedAt: null }),
    );
  }

  async function change(actor: Actor, id: string, name: Change, { reason, expectedUpdatedAt }: ChangeBody) {
    const client = await requireClient(db, id);
    if (name === 'unverify' && client.origin === 'operator') {
      throw new Problem(409, 'Apps of the operator always count as verified.', {
        code: 'app-of-the-operator',
      });
    }
    const work = async (tx: Transaction) => {
      await actAs(tx, actor);
      const { set, kind } = changes[name];
      const { rows } = await sql`
        update clients set ${set}, updated_at = now()
        where id = ${client.id} and ${changesAnything[name]}
          and (${expectedUpdatedAt}::timestamptz is null or date_trunc('milliseconds', updated_at) = ${expectedUpdatedAt})
        returning id`.execute(tx);
      if (rows.length === 0) {
        if (expectedUpdatedAt !== null) await requireUnchanged(tx, client.id, expectedUpdatedAt);
        return;
      }
      await recordEntry(tx, { kind, clientId: client.id, details: reason === null ? {} : { reason } });
    };
    // With the delivery hold, no delivery starts after the suspension commits.
    if (name === 'suspend') {
      await withDeliveryHold(db, { clientId: client.id, accountId: null, lane: null }, work);
    } else await db.transaction().execute(work);
    clients.forget(client.id);
    return represent(await requireClient(db, client.id));
  }
}

/** Condition for each action to change anything. */
const changesAnything = {
  verify: sql`verified_at is null`,
  unverify: sql`verified_at is not null`,
  suspend: sql`suspended_at is null`,
  reinstate: sql`suspended_at is not null`,
} as const;

interface Key {
  /** The name in lower case, or the time of creation. */
  value: string;
  id: string;
}

function keyOf(client: ClientHead, isByName: boolean): string {
  return JSON.stringify([isByName ? client.name.toLowerCase() : client.createdAt.toISOString(), client.id]);
}

function readKey(text: string | null, isByName: boolean, invalid: () => Problem): Key | null {
  if (text === null) return null;
  try {
    const [value, id] = JSON.parse(text) as unknown[];
    const isValue =
      typeof value === 'string' && (isByName ? isStorable(value) : readTime(value) !== undefined);
    if (isValue && typeof id === 'string' && isStorable(id)) return { value, id };
  } catch {}
  throw invalid();
}

/** Lists clients: with a prefix by name, otherwise newest first. */
async function listClients(
  db: Database,
  prefix: string | null,
  after: Key | null,
  count: number,
): Promise<ClientHead[]> {
  if (prefix !== null) {
    const next =
      after === null ? sql`` : sql`and (lower(name) collate "C", id) > (${after.value}, ${after.id})`;
    const { rows } = await sql<ClientHead>`
      select ${clientHeadColumns} from clients
      where lower(name) collate "C" >= ${prefix} and lower(name) collate "C" < ${prefix} || chr(1114111) ${next}
      order by lower(name) collate "C", id limit ${count}`.execute(db);
    return rows;
  }
  // Keys have millisecond precision: the bound is the next millisecond, and rows already seen are skipped by id.
  const next =
    after === null
      ? sql``
      : sql`where (date_trunc('milliseconds', created_at), id) < (${after.value}::timestamptz, ${after.id})
          and created_at < ${after.value}::timestamptz + interval '1 millisecond'`;
  const { rows } = await sql<ClientHead>`
    select ${clientHeadColumns} from clients ${next}
    order by created_at desc, id desc limit ${count}`.execute(db);
  return rows;
}

/** @throws Problem 412 if the app has changed since the administrator read it */
async function requireUnchanged(tx: Transaction, id: string, expectedUpdatedAt: Date): Promise<void> {
  const { rows } = await sql`
    select from clients where id = ${id} and date_trunc('milliseconds', updated_at) = ${expectedUpdatedAt}`.execute(
    tx,
  );
  if (rows.length > 0) return;
  throw new Problem(412, 'The app has changed since you read it. Read it again.', { code: 'app-changed' });
}

async function requireClient(db: Database, id: string): Promise<Client> {
  const { rows } =
    /^[\x21-\x7e]{1,2048}$/.test(id) && !ownClientIds.includes(id)
      ? await sql<Client>`select ${clientColumns()} from clients where id = ${id}`.execute(db)
      : { rows: [] };
  if (rows[0] === undefined) throw appNotFound();
  return rows[0];
}

function represent(client: Client): Record<string, unknown> {
  const self = `/admin/apps/${encodeURIComponent(client.id)}`;
  const post = (name: string) => ({ href: `${self}/${name}`, method: 'POST' });
  const isSuspended = client.state === 'suspended';
  return {
    ...representClient(client),
    _links: {
      self: { href: self },
      app: { href: appPath(client.id) },
      ...logoLink(client),
      grants: { href: `/admin/grants?client=${encodeURIComponent(client.id)}` },
      audit: { href: `/admin/audit?client=${encodeURIComponent(client.id)}` },
      ...(isSuspended ? { reinstate: post('reinstate') } : { suspend: post('suspend') }),
      ...(client.state === 'verified' ? { unverify: post('unverify') } : { verify: post('verify') }),
    },
  };
}

interface ChangeBody {
  /** The administrator's reason, for the audit log. */
  reason: string | null;
  /** `updated_at` of the version that the administrator verifies; null for other actions. */
  expectedUpdatedAt: Date | null;
}
