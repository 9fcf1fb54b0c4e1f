/**
 * `/apps/<id>/members` and `/app-invitations`: who works on an app together. An owner names others by their e-mail
 * address and learns nothing of whether there is such an account; whoever is invited decides.
 */

import type { FastifyRequest } from 'fastify';
import { findAccount, normalizeEmail } from '../../accounts/account.ts';
import { isId } from '../../crypto/ids.ts';
import type { Transaction } from '../../database/database.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { bodyProblem, Problem } from '../../http/problem.ts';
import { type Actor, actAs, actorOf, requireAccount } from '../actor.ts';
import { type App, type Role, roles } from '../app.ts';
import {
  acceptInvitation,
  declineInvitation,
  findInvitation,
  type Invitation,
  invite,
  listInvitations,
  listReceived,
  takeBackInvitation,
} from '../invitation.ts';
import {
  addMember,
  changeRole,
  findMember,
  listMembers,
  type Member,
  membersMax,
  removeMember,
} from '../member.ts';
import { type AppRoutesOptions, refuseBody, requireApp, requireLocked, requireOwner } from './app_routes.ts';
import { representInvited, representMember, representReceived } from './representation.ts';

interface IdRoute {
  Params: { id: string };
}

interface MemberRoute {
  Params: { id: string; account: string };
}

type Named = { id: string } | { email: string };

export function registerMemberRoutes({
  api,
  db,
  guard,
}: Pick<AppRoutesOptions, 'api' | 'db' | 'guard'>): void {
  const reader = async (request: FastifyRequest) => actorOf(db, await guard(request, 'read:apps'));
  const writer = async (request: FastifyRequest) => actorOf(db, await guard(request, 'write:apps'));

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
    const named = readNamed(request.params.account);
    const member = named && (await findMember(db, id, named));
    if (member !== undefined) return representMember(id, member);
    const invited =
      named !== undefined && 'email' in named ? await findInvitation(db, id, named.email) : undefined;
    if (invited === undefined) throw memberNotFound();
    return representInvited(invited);
  });

  api.put<MemberRoute>('/apps/:id/members/:account', async (request, reply) => {
    const actor = await writer(request);
    const named = readNamed(request.params.account);
    const role = readRole(request.body);
    const put = await db.transaction().execute(async (tx) => {
      const { client } = await requireOwned(tx, actor, request.params.id);
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
    const named = readNamed(request.params.account);
    await db.transaction().execute(async (tx) => {
      const app = await requireLocked(tx, actor, request.params.id);
      const { id } = app.client;
      const member = named && (await findMember(tx, id, named));
      // Everybody may leave.
      if (member?.accountId !== actor.accountId || member === undefined) requireOwner(app);
      await actAs(tx, actor);
      if (member !== undefined) {
        if (!(await removeMember(tx, id, member.accountId))) throw lastOwner();
        return;
      }
      const isInvited = named !== undefined && 'email' in named;
      if (!isInvited || !(await takeBackInvitation(tx, id, named.email))) throw memberNotFound();
    });
    return reply.code(204).send();
  });

  api.get('/app-invitations', async (request, reply) => {
    const accountId = requireAccount(await reader(request));
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listReceived(db, accountId, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, representReceived, ({ id }) => id);
  });

  api.get<IdRoute>('/app-invitations/:id', async (request) => {
    const accountId = requireAccount(await reader(request));
    const { id } = request.params;
    const found = isId(id) ? (await listReceived(db, accountId, 1, null, id))[0] : undefined;
    if (found === undefined) throw invitationNotFound();
    return representReceived(found);
  });

  api.post<IdRoute>('/app-invitations/:id/accept', async (request) => {
    const actor = await writer(request);
    const accountId = requireAccount(actor);
    refuseBody(request);
    const { id } = request.params;
    return db.transaction().execute(async (tx) => {
      await actAs(tx, actor);
      const accepted = isId(id) ? await acceptInvitation(tx, accountId, id) : undefined;
      if (accepted === undefined) throw invitationNotFound();
      const member = await findMember(tx, accepted.clientId, { id: accountId });
      return representMember(accepted.clientId, member as Member);
    });
  });

  api.delete<IdRoute>('/app-invitations/:id', async (request, reply) => {
    const actor = await writer(request);
    const accountId = requireAccount(actor);
    const { id } = request.params;
    const isDeclined =
      isId(id) &&
      (await db.transaction().execute(async (tx) => {
        await actAs(tx, actor);
        return declineInvitation(tx, accountId, id);
      }));
    if (!isDeclined) throw invitationNotFound();
    return reply.code(204).send();
  });
}

type Put = { isNew: boolean } & ({ member: Member } | { invited: Invitation });

async function putMember(
  tx: Transaction,
  actor: Actor,
  clientId: string,
  named: Named,
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
  // Administrators see all accounts anyway; to anybody else this would tell which ids there are.
  if (!actor.isAdmin || (await findAccount(tx, named.id)) === undefined) throw memberNotFound();
  if ((await listMembers(tx, clientId)).length >= membersMax) throw tooMany();
  await addMember(tx, clientId, named.id, role);
  return { isNew: true, member: (await findMember(tx, clientId, named)) as Member };
}

async function requireOwned(tx: Transaction, actor: Actor, id: string): Promise<App> {
  const app = await requireLocked(tx, actor, id);
  requireOwner(app);
  return app;
}

/** @returns undefined for what can be neither an account id nor an e-mail address */
function readNamed(text: string): Named | undefined {
  if (isId(text)) return { id: text };
  const email = text.includes('\0') ? undefined : normalizeEmail(text);
  return email === undefined ? undefined : { email };
}

function readRole(body: unknown): Role {
  const given = typeof body === 'object' && body !== null && !Array.isArray(body) ? body : undefined;
  if (given === undefined) throw bodyProblem([{ pointer: '', message: 'must be an object' }]);
  const { role, ...others } = given as Record<string, unknown>;
  const faults = Object.keys(others).map((name) => ({
    pointer: `/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`,
    message: 'is not a known property',
  }));
  if (!roles.includes(role as Role))
    faults.push({ pointer: '/role', message: `may be ${roles.join(' or ')}` });
  if (faults.length > 0) throw bodyProblem(faults.slice(0, 100));
  return role as Role;
}

function memberNotFound(): Problem {
  return new Problem(404, 'There is no such member. People are invited by their e-mail address.');
}

function invitationNotFound(): Problem {
  return new Problem(404, 'There is no such invitation.');
}

function lastOwner(): Problem {
  return new Problem(409, 'An app keeps its last owner: make somebody else an owner first.', {
    code: 'last-owner',
  });
}

function tooMany(): Problem {
  return new Problem(409, `An app has ${membersMax} members and invitations at most.`, {
    code: 'too-many-members',
  });
}
