/**
 * `/apps/<id>/members`. Owners invite people by e-mail address and do not learn whether an account with the address
 * exists. The invited person accepts or declines (invitation_routes.ts).
 */

import { findAccount, normalizeEmail } from '../../accounts/account.ts';
import { isId } from '../../crypto/ids.ts';
import type { Transaction } from '../../database/database.ts';
import { readJsonObject } from '../../http/json_object.ts';
import { readPage } from '../../http/page.ts';
import { bodyProblem, Problem, type ValidationError } from '../../http/problem.ts';
import { type Actor, actAs } from '../actor.ts';
import { type App, type Role, roles } from '../app.ts';
import { cancelInvitation, findInvitation, type Invitation, invite, listInvitations } from '../invitation.ts';
import {
  addMember,
  changeRole,
  findMember,
  listMembers,
  type Member,
  membersMax,
  removeMember,
} from '../member.ts';
import {
  type AppRoutesOptions,
  createActorReaders,
  type IdRoute,
  requireApp,
  requireLockedApp,
  requireOwner,
} from './app_access.ts';
import { representInvited, representMember } from './representation.ts';

interface MemberRoute {
  Params: { id: string; account: string };
}

type MemberName = { id: string } | { email: string };

export function registerMemberRoutes({
  api,
  db,
  guard,
}: Pick<AppRoutesOptions, 'api' | 'db' | 'guard'>): void {
  const { reader, writer } = createActorReaders(db, guard);

  api.get<IdRoute>('/apps/:id/members', async (request) => {
    const actor = await reader(request);
    readPage(request);
    const { id } = (await requireApp(db, actor, request.params.id)).client;
    const members = await listMembers(db, id);
    const invited = await listInvitations(db, id);
    return {
      items: [...members.map((each) => representMember(id, each)), ...invited.map(representInvited)],
      _links: { self: { href: request.url } },
    };
  });

  api.get<MemberRoute>('/apps/:id/members/:account', async (request) => {
    const actor = await reader(request);
    const { id } = (await requireApp(db, actor, request.params.id)).client;
    const named = readMemberName(request.params.account);
    const member = named && (await findMember(db, id, named));
    if (member !== undefined) return representMember(id, member);
    const invited =
      named !== undefined && 'email' in named ? await findInvitation(db, id, named.email) : undefined;
    if (invited === undefined) throw memberNotFound();
    return representInvited(invited);
  });

  api.put<MemberRoute>('/apps/:id/members/:account', async (request, reply) => {
    const actor = await writer(request);
    const named = readMemberName(request.params.account);
    const role = readRole(request.body);
    const put = await db.transaction().execute(async (tx) => {
      const { client } = await requireOwnedApp(tx, actor, request.params.id);
      if (named === undefined) throw memberNotFound();
      return putMember(tx, actor, client.id, named, role);
    });
    const { id } = request.params;
    reply.code(put.isNew ? 201 : 200);
    const body = 'invited' in put ? representInvited(put.invited) : representMember(id, put.member);
    if (put.isNew) reply.header('location', (body._links as { self: { href: string } }).self.href);
    return body;
  });

  api.delete<MemberRoute>('/apps/:id/members/:account', async (request, reply) => {
    const actor = await writer(request);
    const named = readMemberName(request.params.account);
    await db.transaction().execute(async (tx) => {
      const app = await requireLockedApp(tx, actor, request.params.id);
      const { id } = app.client;
      const member = named && (await findMember(tx, id, named));
      // Every member may leave.
      if (member?.accountId !== actor.accountId || member === undefined) requireOwner(app);
      await actAs(tx, actor);
      if (member !== undefined) {
        if (!(await removeMember(tx, id, member.accountId))) throw lastOwner();
        return;
      }
      const isInvited = named !== undefined && 'email' in named;
      if (!isInvited || !(await cancelInvitation(tx, id, named.email))) throw memberNotFound();
    });
    return reply.code(204).send();
  });
}

type Put = { isNew: boolean } & ({ member: Member } | { invited: Invitation });

async function putMember(
  tx: Transaction,
  actor: Actor,
  clientId: string,
  named: MemberName,
  role: Role,
): Promise<Put> {
  await actAs(tx, actor);
  const member = await findMember(tx, clientId, named);
  if (member !== undefined) {
    if (!(await changeRole(tx, clientId, member.accountId, role))) throw lastOwner();
    return { isNew: false, member: { ...member, role } };
  }
  if ('email' in named) {
    const before = await findInvitation(tx, clientId, named.email);
    const invited = await invite(tx, clientId, named.email, role, actor.accountId);
    if (invited === undefined) throw tooMany();
    return { isNew: before === undefined, invited };
  }
  // Only administrators may add accounts by id: for anyone else the response would reveal which ids exist.
  if (!actor.isAdmin || (await findAccount(tx, named.id)) === undefined) throw memberNotFound();
  if ((await listMembers(tx, clientId)).length >= membersMax) throw tooMany();
  await addMember(tx, clientId, named.id, role);
  return { isNew: true, member: (await findMember(tx, clientId, named)) as Member };
}

async function requireOwnedApp(tx: Transaction, actor: Actor, id: string): Promise<App> {
  const app = await requireLockedApp(tx, actor, id);
  requireOwner(app);
  return app;
}

/** @returns undefined if the text is neither an account id nor an e-mail address */
function readMemberName(text: string): MemberName | undefined {
  if (isId(text)) return { id: text };
  const email = text.includes('\0') ? undefined : normalizeEmail(text);
  return email === undefined ? undefined : { email };
}

function readRole(body: unknown): Role {
  const errors: ValidationError[] = [];
  const { role } = readJsonObject(body, ['role'], errors);
  if (!roles.includes(role as Role)) {
    errors.push({ pointer: '/role', message: `must be ${roles.join(' or ')}` });
  }
  if (errors.length > 0) throw bodyProblem(errors.slice(0, 100));
  return role as Role;
}

function memberNotFound(): Problem {
  return new Problem(404, 'Member not found. Invite people by their e-mail address.');
}

function lastOwner(): Problem {
  return new Problem(409, 'An app must keep an owner. Make another member an owner first.', {
    code: 'last-owner',
  });
}

function tooMany(): Problem {
  return new Problem(409, `An app can have at most ${membersMax} members and invitations.`, {
    code: 'too-many-members',
  });
}
