/**
 * `/apps/<id>/members`. Owners invite people by e-mail address and do not learn whether an account with the address
 * exists. The invited person accepts or declines (invitation_routes.ts).
 */

import Type from 'typebox';
import { findAccount, normalizeEmail } from '../../accounts/account.ts';
import { type App, type Role, roles } from '../../apps/app.ts';
import {
  cancelInvitation,
  findInvitation,
  type Invitation,
  invite,
  listInvitations,
} from '../../apps/invitation.ts';
import {
  addMember,
  changeRole,
  findMember,
  listMembers,
  type Member,
  membersMax,
  removeMember,
} from '../../apps/member.ts';
import { isId } from '../../crypto/ids.ts';
import type { Transaction } from '../../database/database.ts';
import { type Actor, actAs } from '../../grants/actor.ts';
import { jsonBody, listOf, ok, pageParameters, pathParameter } from '../../http/describe.ts';
import { readPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { named, StringEnum, strict } from '../../http/schema.ts';
import { member as byMember } from '../admission.ts';
import { route, serve } from '../route.ts';
import { type AppRoutesOptions, requireApp, requireLockedApp, requireOwner } from './app_access.ts';
import { representInvited, representMember } from './representation.ts';
import { AppMember, appId, tag } from './schemas.ts';

type MemberName = { id: string } | { email: string };

const memberId = pathParameter(
  'account',
  'An account id, or a percent-encoded e-mail address. The address of an external account counts only if it is verified. An address that several members share is rejected (409 `ambiguous-address`).',
  Type.String({ minLength: 1, maxLength: 254 }),
);
const AppMemberPut = named('AppMemberPut', Type.Object({ role: StringEnum(...roles) }, strict));

export const memberRoutes = {
  list: route({
    id: 'list_app_members',
    method: 'get',
    path: '/apps/{id}/members',
    tag,
    summary: 'List the members and pending invitations of an app',
    admission: byMember('read:apps'),
    parameters: [appId, ...pageParameters],
    responses: ok('All members and invitations.', listOf(AppMember)),
  }),
  read: route({
    id: 'read_app_member',
    method: 'get',
    path: '/apps/{id}/members/{account}',
    tag,
    summary: 'Read a member or an invitation',
    admission: byMember('read:apps'),
    parameters: [appId, memberId],
    responses: ok('The member or invitation.', AppMember),
    problems: [409],
  }),
  put: route({
    id: 'put_app_member',
    method: 'put',
    path: '/apps/{id}/members/{account}',
    tag,
    summary: 'Change the role of a member, or invite a person by e-mail address (owners only)',
    admission: byMember('write:apps'),
    parameters: [appId, memberId],
    body: jsonBody(AppMemberPut, { role: 'developer' }),
    responses: {
      200: { description: 'The role was changed, or the invitation renewed.', schema: AppMember },
      201: {
        description: 'The person was invited, or added by an administrator.',
        schema: AppMember,
        headers: ['Location'],
      },
    },
    problems: [409],
  }),
  delete: route({
    id: 'delete_app_member',
    method: 'delete',
    path: '/apps/{id}/members/{account}',
    tag,
    summary: 'Remove a member or cancel an invitation (owners only), or leave the app; not the last owner',
    admission: byMember('write:apps'),
    parameters: [appId, memberId],
    responses: { 204: { description: 'Removed.' } },
    problems: [409],
  }),
};

export function registerMemberRoutes(options: AppRoutesOptions): void {
  const { db } = options;

  serve(options, memberRoutes.list, async ({ request, caller: actor, params }) => {
    readPage(request);
    const { id } = (await requireApp(db, actor, params.id)).client;
    const members = await listMembers(db, id);
    const invited = await listInvitations(db, id);
    return {
      items: [...members.map((each) => representMember(id, each)), ...invited.map(representInvited)],
      _links: { self: { href: request.url } },
    };
  });

  serve(options, memberRoutes.read, async ({ caller: actor, params }) => {
    const { id } = (await requireApp(db, actor, params.id)).client;
    const name = readMemberName(params.account);
    const member = name && (await findMember(db, id, name));
    if (member !== undefined) return representMember(id, member);
    const invited =
      name !== undefined && 'email' in name ? await findInvitation(db, id, name.email) : undefined;
    if (invited === undefined) throw memberNotFound();
    return representInvited(invited);
  });

  serve(options, memberRoutes.put, async ({ reply, caller: actor, params, body: { role } }) => {
    const name = readMemberName(params.account);
    const put = await db.transaction().execute(async (tx) => {
      const { client } = await requireOwnedApp(tx, actor, params.id);
      if (name === undefined) throw memberNotFound();
      return putMember(tx, actor, client.id, name, role);
    });
    reply.code(put.isNew ? 201 : 200);
    const shown = 'invited' in put ? representInvited(put.invited) : representMember(params.id, put.member);
    if (put.isNew) reply.header('location', (shown._links as { self: { href: string } }).self.href);
    return shown;
  });

  serve(options, memberRoutes.delete, async ({ reply, caller: actor, params }) => {
    const name = readMemberName(params.account);
    await db.transaction().execute(async (tx) => {
      const app = await requireLockedApp(tx, actor, params.id);
      const { id } = app.client;
      const member = name && (await findMember(tx, id, name));
      // Every member may leave.
      if (member?.accountId !== actor.accountId || member === undefined) requireOwner(app);
      await actAs(tx, actor);
      if (member !== undefined) {
        if (!(await removeMember(tx, id, member.accountId))) throw lastOwner();
        return;
      }
      const isInvited = name !== undefined && 'email' in name;
      if (!isInvited || !(await cancelInvitation(tx, id, name.email))) throw memberNotFound();
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
