/**
 * `/apps/<id>/subscriptions`: members of an app create and list its own subscriptions. Each subscription is also
 * available with all operations at `/subscriptions/<id>`.
 */

import { isId } from '../../crypto/ids.ts';
import { inTransaction } from '../../database/database.ts';
import { type Actor, actAs } from '../../grants/actor.ts';
import { createdHeaders, jsonBody, keyParameter, page, pageParameters } from '../../http/describe.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { readPage, sendPage } from '../../http/page.ts';
import type { Owner, Subscription } from '../../webhooks/subscriptions/subscription.ts';
import { listSubscriptions } from '../../webhooks/subscriptions/subscription_lists.ts';
import { member } from '../admission.ts';
import { idempotencyNamespace, requireApp, requireLockedApp } from '../apps/app_access.ts';
import { appId } from '../apps/schemas.ts';
import { route, serve } from '../route.ts';
import { type SubscriptionBodies, SubscriptionMade, SubscriptionShown } from './schemas.ts';
import {
  createResponse,
  prepareCreation,
  requireMaySubscribe,
  type WebhookRoutesOptions,
} from './subscription_access.ts';
import { checkSubscription } from './subscription_body.ts';
import { representSubscription } from './subscription_representation.ts';
import { exampleSubscription } from './subscription_routes.ts';

/**
 * Deliveries contain users' data. An administrator may read and direct them only as a member of the app, whom its
 * other members can see.
 */
const asMember = (actor: Actor): Actor => ({ ...actor, isAdmin: false });

/** @param bodies the schemas of bodies that name kinds */
export function appSubscriptionRoutes(bodies: SubscriptionBodies) {
  return {
    list: route({
      id: 'list_app_subscriptions',
      method: 'get',
      path: '/apps/{id}/subscriptions',
      tag: 'subscriptions',
      summary: 'List an app’s own subscriptions, for its members',
      admission: member('read:apps', 'read:webhooks'),
      parameters: [appId, ...pageParameters],
      responses: page('A page.', SubscriptionShown),
    }),
    create: route({
      id: 'create_app_subscription',
      method: 'post',
      path: '/apps/{id}/subscriptions',
      tag: 'subscriptions',
      summary:
        'Subscribe a URL to events of every account that granted the app, each within its grant’s scopes',
      admission: member('write:apps', 'write:webhooks'),
      parameters: [appId, keyParameter],
      body: jsonBody(bodies.create, exampleSubscription),
      responses: {
        201: { description: 'With its secret.', schema: SubscriptionMade, headers: createdHeaders },
      },
      problems: [409],
    }),
  };
}

export function registerAppSubscriptions(
  options: WebhookRoutesOptions,
  routes: ReturnType<typeof appSubscriptionRoutes>,
): void {
  const { db } = options;

  serve(options, routes.list, async ({ request, reply, caller, params }) => {
    const { client, creatorId } = await requireApp(db, asMember(caller), params.id);
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const owner: Owner = { kind: 'client', clientId: client.id, creatorId };
    const { found, next } = await listSubscriptions(db, owner, page.limit, page.after);
    const show = (subscription: Subscription) => representSubscription(subscription, owner);
    return sendPage(request, reply, page, found, show, ({ id }) => id, next);
  });

  serve(
    options,
    routes.create,
    async ({ request, reply, caller, params, body }) => {
      const { client, creatorId } = await requireApp(db, asMember(caller), params.id);
      const owner: Owner = { kind: 'client', clientId: client.id, creatorId };
      await requireMaySubscribe(options, owner);
      const prepared = await prepareCreation(options, owner, body);
      return sendIdempotent(options, request, reply, idempotencyNamespace(caller), (outer) =>
        inTransaction(outer, async (tx) => {
          await requireLockedApp(tx, asMember(caller), client.id);
          await actAs(tx, caller);
          return createResponse(tx, options, owner, prepared);
        }),
      );
    },
    (valid, errors) => checkSubscription(valid, errors, options, false),
  );
}
