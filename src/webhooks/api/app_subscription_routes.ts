/**
 * `/apps/<id>/subscriptions`: members of an app create and list its own subscriptions. Each subscription is also
 * available with all operations at `/subscriptions/<id>`.
 */

import { type Actor, actAs, resolveActor } from '../../apps/actor.ts';
import { idempotencyNamespace, requireApp, requireLockedApp } from '../../apps/api/app_access.ts';
import { isId } from '../../crypto/ids.ts';
import { inTransaction } from '../../database/database.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { makeSecret } from '../subscriptions/signature.ts';
import { listSubscriptions, type Owner, type Subscription } from '../subscriptions/subscription.ts';
import { readSubscriptionFields } from '../subscriptions/subscription_body.ts';
import { representSubscription } from './subscription_representation.ts';
import { bodyRules, createResponse, type RoutesOptions, requireMaySubscribe } from './subscription_routes.ts';

interface IdRoute {
  Params: { id: string };
}

/**
 * Deliveries contain users' data. An administrator may read and direct them only as a member of the app, whom its
 * other members can see.
 */
const asMember = (actor: Actor): Actor => ({ ...actor, isAdmin: false });

export function registerAppSubscriptions(options: RoutesOptions): void {
  const { api, db, guard } = options;
  const rules = bodyRules(options);

  api.get<IdRoute>('/apps/:id/subscriptions', async (request, reply) => {
    const actor = await resolveActor(db, await guard(request, 'read:apps', 'read:webhooks'));
    const { client } = await requireApp(db, asMember(actor), request.params.id);
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const owner: Owner = { kind: 'client', clientId: client.id };
    const found = await listSubscriptions(db, owner, page.limit + 1, page.after);
    const show = (subscription: Subscription) => representSubscription(subscription, owner);
    return sendPage(request, reply, page, found, show, ({ id }) => id);
  });

  api.post<IdRoute>('/apps/:id/subscriptions', async (request, reply) => {
    const actor = await resolveActor(db, await guard(request, 'write:apps', 'write:webhooks'));
    const { client } = await requireApp(db, asMember(actor), request.params.id);
    const { secret, ...fields } = readSubscriptionFields(request.body, rules);
    const owner: Owner = { kind: 'client', clientId: client.id };
    await requireMaySubscribe(options, owner);
    return sendIdempotent(options, request, reply, idempotencyNamespace(actor), (outer) =>
      inTransaction(outer, async (tx) => {
        await requireLockedApp(tx, asMember(actor), client.id);
        await actAs(tx, actor);
        return createResponse(tx, options, owner, fields, secret ?? makeSecret());
      }),
    );
  });
}
