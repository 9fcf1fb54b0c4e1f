/** `/app-invitations`: the signed-in account reads, accepts and declines invitations to apps. */

import Type from 'typebox';
import { roles } from '../../apps/app.ts';
import { acceptInvitation, declineInvitation, listReceivedInvitations } from '../../apps/invitation.ts';
import { findMember, type Member } from '../../apps/member.ts';
import { isId } from '../../crypto/ids.ts';
import { actAs, requireAccount } from '../../grants/actor.ts';
import { emptyBody, idParameter, links, ok, page, pageParameters } from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';
import { member } from '../admission.ts';
import { route, serve } from '../route.ts';
import type { AppRoutesOptions } from './app_access.ts';
import { representMember, representReceived } from './representation.ts';
import { AppMember, tag } from './schemas.ts';

const AppInvitation = named(
  'AppInvitation',
  Type.Object(
    {
      id: Id(),
      app: Type.Object(
        { client_id: Type.String(), client_name: Type.String(), logo_uri: Nullable(Type.String()) },
        strict,
      ),
      role: StringEnum(...roles),
      invited_by: Nullable(Type.Object({ name: Type.String(), email: Nullable(Type.String()) }, strict)),
      created_at: Time(),
      expires_at: Time(),
      _links: links,
    },
    strict,
  ),
);
const id = idParameter('invitation');

export const invitationRoutes = {
  list: route({
    id: 'list_app_invitations',
    method: 'get',
    path: '/app-invitations',
    tag,
    summary: 'List the invitations of the signed-in account',
    admission: member('read:apps'),
    parameters: pageParameters,
    responses: page('A page of invitations.', AppInvitation),
  }),
  read: route({
    id: 'read_app_invitation',
    method: 'get',
    path: '/app-invitations/{id}',
    tag,
    summary: 'Read an invitation',
    admission: member('read:apps'),
    parameters: [id],
    responses: ok('The invitation.', AppInvitation),
  }),
  accept: route({
    id: 'accept_app_invitation',
    method: 'post',
    path: '/app-invitations/{id}/accept',
    tag,
    summary: 'Accept an invitation',
    admission: member('write:apps'),
    parameters: [id],
    body: emptyBody,
    responses: ok('The new membership.', AppMember),
  }),
  decline: route({
    id: 'decline_app_invitation',
    method: 'delete',
    path: '/app-invitations/{id}',
    tag,
    summary: 'Decline an invitation',
    admission: member('write:apps'),
    parameters: [id],
    responses: { 204: { description: 'Declined.' } },
  }),
};

export function registerInvitationRoutes(options: AppRoutesOptions): void {
  const { db } = options;

  serve(options, invitationRoutes.list, async ({ request, reply, caller }) => {
    const accountId = requireAccount(caller);
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listReceivedInvitations(db, accountId, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, representReceived, ({ id }) => id);
  });

  serve(options, invitationRoutes.read, async ({ caller, params: { id } }) => {
    const accountId = requireAccount(caller);
    const found = isId(id) ? (await listReceivedInvitations(db, accountId, 1, null, id))[0] : undefined;
    if (found === undefined) throw invitationNotFound();
    return representReceived(found);
  });

  serve(options, invitationRoutes.accept, async ({ caller, params: { id } }) => {
    const accountId = requireAccount(caller);
    return db.transaction().execute(async (tx) => {
      await actAs(tx, caller);
      const accepted = isId(id) ? await acceptInvitation(tx, accountId, id) : undefined;
      if (accepted === undefined) throw invitationNotFound();
      const member = await findMember(tx, accepted.clientId, { id: accountId });
      return representMember(accepted.clientId, member as Member);
    });
  });

  serve(options, invitationRoutes.decline, async ({ reply, caller, params: { id } }) => {
    const accountId = requireAccount(caller);
    const isDeclined =
      isId(id) &&
      (await db.transaction().execute(async (tx) => {
        await actAs(tx, caller);
        return declineInvitation(tx, accountId, id);
      }));
    if (!isDeclined) throw invitationNotFound();
    return reply.code(204).send();
  });
}

function invitationNotFound(): Problem {
  return new Problem(404, 'Invitation not found.');
}
