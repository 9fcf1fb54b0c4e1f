/** `/app-invitations`: the signed-in account reads, accepts and declines invitations to apps. */

import { isId } from '../../crypto/ids.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { actAs, requireAccount } from '../actor.ts';
import { acceptInvitation, declineInvitation, listReceivedInvitations } from '../invitation.ts';
import { findMember, type Member } from '../member.ts';
import { type AppRoutesOptions, createActorReaders, type IdRoute, requireEmptyBody } from './app_access.ts';
import { representMember, representReceived } from './representation.ts';

export function registerInvitationRoutes({
  api,
  db,
  guard,
}: Pick<AppRoutesOptions, 'api' | 'db' | 'guard'>): void {
  const { reader, writer } = createActorReaders(db, guard);

  api.get('/app-invitations', async (request, reply) => {
    const accountId = requireAccount(await reader(request));
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listReceivedInvitations(db, accountId, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, representReceived, ({ id }) => id);
  });

  api.get<IdRoute>('/app-invitations/:id', async (request) => {
    const accountId = requireAccount(await reader(request));
    const { id } = request.params;
    const found = isId(id) ? (await listReceivedInvitations(db, accountId, 1, null, id))[0] : undefined;
    if (found === undefined) throw invitationNotFound();
    return representReceived(found);
  });

  api.post<IdRoute>('/app-invitations/:id/accept', async (request) => {
    const actor = await writer(request);
    const accountId = requireAccount(actor);
    requireEmptyBody(request);
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

function invitationNotFound(): Problem {
  return new Problem(404, 'Invitation not found.');
}
