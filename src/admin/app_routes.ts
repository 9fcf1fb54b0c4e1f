/** `/admin/apps`: all apps; verification and suspension. */

import { sql } from 'kysely';
import { type Actor, actAs } from '../apps/actor.ts';
import { appNotFound } from '../apps/api/app_access.ts';
import { appPath, logoLink, representClient } from '../apps/api/representation.ts';
import { recordEntry } from '../audit/entry.ts';
import { type Client, type ClientRow, toClient } from '../clients/client.ts';
import { ownClientIds } from '../clients/own_clients.ts';
import type { Database, Transaction } from '../database/database.ts';
import { withDeliveryHold } from '../grants/delivery_hold.ts';
import { isStorable } from '../http/json.ts';
import { readJsonObject } from '../http/json_object.ts';
import { readPage, sendPage, textCursor } from '../http/page.ts';
import { bodyProblem, Problem, type ValidationError } from '../http/problem.ts';
import { readTime } from '../http/time.ts';
import { type AdminOptions, adminGuard, type IdRoute } from './options.ts';
import { readChoice, readTextParameter } from './parameters.ts';
import { scanPage } from './scan_page.ts';

const reasonLengthMax = 500;

/** Actions by the last segment of the path, with the assignment and the kind of the audit entry. */
const changes = {
  verify: { set: sql`verified_at = coalesce(verified_at, now())`, kind: 'app.verified' },
  unverify: { set: sql`verified_at = null`, kind: 'app.unverified' },
  suspend: { set: sql`suspended_at = coalesce(suspended_at, now())`, kind: 'app.suspended' },
  reinstate: { set: sql`suspended_at = null`, kind: 'app.reinstated' },
} as const;
type Change = keyof typeof changes;

export function registerAdminApps(options: AdminOptions): void {
  const { api, db, clients } = options;
  const admin = adminGuard(options);

  api.get('/admin/apps', async (request, reply) => {
    await admin(request);
    const page = readPage(request, ['state', 'origin', 'name']);
    const state = readChoice(page.parameters, 'state', ['unverified', 'verified', 'suspended']);
    const origin = readChoice(page.parameters, 'origin', ['operator', 'registration', 'document', 'account']);
    const prefix = readTextParameter(page.parameters, 'name', 100)?.toLowerCase() ?? null;
    const after = textCursor(page);
    const isByName = prefix !== null;
    if (after !== null) readKey(after, isByName, page.invalid);
    const read = (from: string | null, count: number) =>
      listClients(db, prefix, readKey(from, isByName, page.invalid), count);
    const matches = (client: Client) =>
      !ownClientIds.includes(client.id) &&
      (state === null || client.state === state) &&
      (origin === null || client.origin === origin);
    const key = (client: Client) => keyOf(client, isByName);
    const { found, more } = await scanPage(read, matches, key, { ...page, after });
    return sendPage(request, reply, page, found, represent, key, more);
  });

  api.get<IdRoute>('/admin/apps/:id', async (request) => {
    await admin(request);
    return represent(await requireClient(db, request.params.id));
  });

  // One call per route, because a test of the reference finds routes by these literals.
  api.post<IdRoute>('/admin/apps/:id/verify', async (request) =>
    change(await admin(request), request.params.id, 'verify', readVerification(request.body)),
  );
  api.post<IdRoute>('/admin/apps/:id/unverify', async (request) =>
    change(await admin(request), request.params.id, 'unverify', readChange(request.body)),
  );
  api.post<IdRoute>('/admin/apps/:id/suspend', async (request) =>
    change(await admin(request), request.params.id, 'suspend', readChange(request.body)),
  );
  api.post<IdRoute>('/admin/apps/:id/reinstate', async (request) =>
    change(await admin(request), request.params.id, 'reinstate', readChange(request.body)),
  );

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

function keyOf(client: Client, isByName: boolean): string {
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
): Promise<Client[]> {
  if (prefix !== null) {
    const next =
      after === null ? sql`` : sql`and (lower(name) collate "C", id) > (${after.value}, ${after.id})`;
    const { rows } = await sql<ClientRow>`
      select * from clients
      where lower(name) collate "C" >= ${prefix} and lower(name) collate "C" < ${prefix} || chr(1114111) ${next}
      order by lower(name) collate "C", id limit ${count}`.execute(db);
    return rows.map(toClient);
  }
  // Keys have millisecond precision: the bound is the next millisecond, and rows already seen are skipped by id.
  const next =
    after === null
      ? sql``
      : sql`where (date_trunc('milliseconds', created_at), id) < (${after.value}::timestamptz, ${after.id})
          and created_at < ${after.value}::timestamptz + interval '1 millisecond'`;
  const { rows } = await sql<ClientRow>`
    select * from clients ${next}
    order by created_at desc, id desc limit ${count}`.execute(db);
  return rows.map(toClient);
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
      ? await sql<ClientRow>`select * from clients where id = ${id}`.execute(db)
      : { rows: [] };
  if (rows[0] === undefined) throw appNotFound();
  return toClient(rows[0]);
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

const readChange = (body: unknown) => readBody(body, false);
const readVerification = (body: unknown) => readBody(body, true);

/** @throws Problem 422 */
function readBody(body: unknown, isVerification: boolean): ChangeBody {
  const errors: ValidationError[] = [];
  const members = ['reason', ...(isVerification ? ['updated_at'] : [])];
  const { reason = null, updated_at: updatedAt } = readJsonObject(
    body === undefined ? {} : body,
    members,
    errors,
  );
  const expectedUpdatedAt = typeof updatedAt === 'string' ? (readTime(updatedAt) ?? null) : null;
  if (isVerification && expectedUpdatedAt === null) {
    const message = 'must be the updated_at of the app as you reviewed it, an RFC 3339 time';
    errors.push({ pointer: '/updated_at', message });
  }
  const isReason = typeof reason === 'string' && reason.length <= reasonLengthMax;
  if (reason !== null && !isReason) {
    errors.push({ pointer: '/reason', message: `must be a string of at most ${reasonLengthMax} characters` });
  }
  if (errors.length > 0) throw bodyProblem(errors.slice(0, 100));
  return { reason: reason as string | null, expectedUpdatedAt };
}
