/**
 * The registration API: `/subscriptions`. A token shows only its owner's subscriptions; those of others are 404. In
 * the console, a user also sees the subscriptions of apps that act for them, and may test and delete them.
 */

import Type from 'typebox';
import { isId } from '../../crypto/ids.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { pingName } from '../../events/built_in_names.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import {
  createdHeaders,
  idParameter,
  jsonBody,
  keyParameter,
  links,
  mergePatchBody,
  ok,
  page,
  pageParameters,
} from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { ErrorList, Problem } from '../../http/problem.ts';
import { Id, named, strict } from '../../http/schema.ts';
import { sendTest } from '../../webhooks/log/resend.ts';
import { makeSecret } from '../../webhooks/subscriptions/signature.ts';
import { patchHeaders } from '../../webhooks/subscriptions/static_headers.ts';
import { patchAuth } from '../../webhooks/subscriptions/subscriber_auth.ts';
import {
  actAsOwner,
  changeSubscription,
  endSubscription,
  lockSubscription,
  type Owner,
  type Subscription,
} from '../../webhooks/subscriptions/subscription.ts';
import { listSubscriptions } from '../../webhooks/subscriptions/subscription_lists.ts';
import { readSecrets, rotateSecret } from '../../webhooks/subscriptions/subscription_secrets.ts';
import { disableByOwner, enableByOwner } from '../../webhooks/subscriptions/subscription_state.ts';
import { route, serve } from '../route.ts';
import { checkFilter, requireOwnFilter } from './filter_body.ts';
import { sendIdempotentForOwner } from './idempotency.ts';
import { reader, writer } from './owner_admission.ts';
import {
  SecretRotation,
  type SubscriptionBodies,
  SubscriptionMade,
  SubscriptionSecret,
  SubscriptionShown,
} from './schemas.ts';
import {
  createResponse,
  prepareCreation,
  refuseAgents,
  requireMaySubscribe,
  requireOwnSubscription,
  requireSubscription,
  subscriptionNotFound,
  type WebhookRoutesOptions,
} from './subscription_access.ts';
import {
  applySubscriptionPatch,
  checkSecret,
  checkSubscription,
  type PatchedSubscription,
} from './subscription_body.ts';
import { representSecrets, representSubscription } from './subscription_representation.ts';
import { challengeChange, needsChallenge } from './url_handshake.ts';

/** Seconds for which a replaced secret also signs. */
const overlapSecondsDefault = 86_400;

const TestDelivery = named('TestDelivery', Type.Object({ delivery: Id(), _links: links }, strict));

const id = idParameter('subscription');
const tag = 'subscriptions';

export const exampleSubscription = {
  url: 'https://app.example/hooks',
  kinds: ['article.*'],
  signature: 'timestamp',
};

const fixedRoutes = {
  list: route({
    id: 'list_subscriptions',
    method: 'get',
    path: '/subscriptions',
    tag,
    summary: 'List subscriptions',
    description:
      'Lists the subscriptions of the token’s grant or client. The console’s token lists those of the user and of apps that act for the user.',
    admission: reader,
    parameters: pageParameters,
    responses: page('A page.', SubscriptionShown),
  }),
  read: route({
    id: 'read_subscription',
    method: 'get',
    path: '/subscriptions/{id}',
    tag,
    summary: 'Read a subscription',
    admission: reader,
    parameters: [id],
    responses: ok('The subscription.', SubscriptionShown),
  }),
  delete: route({
    id: 'delete_subscription',
    method: 'delete',
    path: '/subscriptions/{id}',
    tag,
    summary: 'End a subscription',
    admission: writer,
    parameters: [id],
    responses: { 204: { description: 'The subscription has ended.' } },
  }),
  readSecret: route({
    id: 'read_subscription_secret',
    method: 'get',
    path: '/subscriptions/{id}/secret',
    tag,
    summary: 'Read the signing secret',
    admission: writer,
    parameters: [id],
    responses: ok('The secret, and the previous one while it still signs.', SubscriptionSecret),
    problems: [409],
  }),
  rotateSecret: route({
    id: 'rotate_subscription_secret',
    method: 'post',
    path: '/subscriptions/{id}/rotate-secret',
    tag,
    summary: 'Rotate the secret',
    description: 'Creates a new secret. The old one also signs for `overlap` seconds.',
    admission: writer,
    parameters: [id, keyParameter],
    body: jsonBody(SecretRotation, { overlap: 86_400 }, false),
    responses: ok('The new secret.', SubscriptionSecret, ['Idempotency-Replayed']),
    problems: [409],
  }),
};

/** @param bodies the schemas of bodies that name kinds */
export function subscriptionRoutes(bodies: SubscriptionBodies) {
  return {
    ...fixedRoutes,
    create: route({
      id: 'create_subscription',
      method: 'post',
      path: '/subscriptions',
      tag,
      summary: 'Subscribe a URL to kinds of events',
      admission: writer,
      parameters: [keyParameter],
      body: jsonBody(bodies.create, exampleSubscription),
      responses: {
        201: {
          description: 'The subscription with its secret.',
          schema: SubscriptionMade,
          headers: createdHeaders,
        },
      },
      problems: [409],
    }),
    change: route({
      id: 'patch_subscription',
      method: 'patch',
      path: '/subscriptions/{id}',
      tag,
      summary: 'Change a subscription',
      admission: writer,
      parameters: [id],
      body: mergePatchBody(bodies.patch, { ordered: true }),
      responses: ok('The changed subscription.', SubscriptionShown),
      problems: [409],
    }),
    test: route({
      id: 'test_subscription',
      method: 'post',
      path: '/subscriptions/{id}/test',
      tag,
      summary: 'Send a test event',
      description: 'Sends a `ping`, or the example of a kind, to this subscription only.',
      admission: writer,
      parameters: [id, keyParameter],
      body: jsonBody(bodies.test, { kind: 'push' }, false),
      responses: {
        202: { description: 'The delivery is due.', schema: TestDelivery, headers: createdHeaders },
      },
      problems: [409],
    }),
  };
}

type SubscriptionRoutes = ReturnType<typeof subscriptionRoutes>;

export function registerSubscriptions(options: WebhookRoutesOptions, routes: SubscriptionRoutes): void {
  const { db } = options;
  registerChange(options, routes);
  registerSecrets(options, routes);

  serve(
    options,
    routes.create,
    async ({ request, reply, caller: owner, body }) => {
      await requireMaySubscribe(options, owner);
      const prepared = await prepareCreation(options, owner, body);
      return sendIdempotentForOwner(options, request, reply, owner, (outer) =>
        inTransaction(outer, async (tx) => {
          await actAsOwner(tx, owner);
          return createResponse(tx, options, owner, prepared);
        }),
      );
    },
    (valid, errors) => checkSubscription(valid, errors, options, false),
  );

  serve(options, routes.list, async ({ request, reply, caller: owner }) => {
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const { found, next } = await listSubscriptions(db, owner, page.limit, page.after);
    const show = (subscription: Subscription) => representSubscription(subscription, owner);
    return sendPage(request, reply, page, found, show, ({ id }) => id, next);
  });

  serve(options, routes.read, async ({ caller: owner, params }) =>
    representSubscription(await requireSubscription(db, owner, params.id), owner),
  );

  serve(options, routes.delete, async ({ reply, caller: owner, params }) => {
    const { id, lane } = await requireSubscription(db, owner, params.id);
    const isEnded = await withDeliveryHold(db, deliveriesOf(lane), async (tx) => {
      await actAsOwner(tx, owner);
      return endSubscription(tx, owner, id);
    });
    if (!isEnded) throw subscriptionNotFound();
    return reply.code(204).send();
  });

  serve(options, routes.test, async ({ request, reply, caller: owner, params, body }) => {
    const example = exampleOf(body.kind, options.catalogue);
    return sendIdempotentForOwner(options, request, reply, owner, async (tx) => {
      const subscription = await requireSubscription(tx, owner, params.id);
      await refuseAgents(tx, subscription.id);
      if (subscription.state !== 'active') {
        throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
      }
      const id = await sendTest(tx, subscription, example);
      const shown = { delivery: id, _links: { delivery: { href: `/deliveries/${id}` } } };
      return { status: 202, headers: { location: `/deliveries/${id}` }, body: JSON.stringify(shown) };
    });
  });
}

function registerChange(options: WebhookRoutesOptions, routes: SubscriptionRoutes): void {
  const { db, sealer } = options;

  serve(
    options,
    routes.change,
    async ({ caller: owner, params, body }) => {
      const before = await requireOwnSubscription(db, owner, params.id);
      const { id, lane } = before;
      requireSameWay(body.url, before);
      if (before.accountId === null) requireOwnFilter(body.filter);
      const planned = applySubscriptionPatch(body, before, options);
      const echoed = await challengeChange(options, owner, before, planned);
      /**
       * @returns whether the subscription must be enabled afterwards; undefined if the change needs a delivery hold and
       *   has none
       */
      const change = async (tx: Transaction, isOnHold: boolean): Promise<boolean | undefined> => {
        await actAsOwner(tx, owner);
        await lockSubscription(tx, owner, id);
        const subscription = await requireSubscription(tx, owner, id);
        requireSameWay(body.url, subscription);
        const patched = applySubscriptionPatch(body, subscription, options);
        requireFilter(body, patched, options);
        if (needsChallenge(options, subscription, patched) && patched.url !== echoed)
          throw changedMeanwhile();
        if (!isOnHold && endsDeliveries(subscription, patched)) return undefined;
        const { state, headers, auth, ...fields } = patched;
        const isMoved = originOf(fields.url) !== originOf(subscription.url);
        await patchHeaders(tx, id, headers, isMoved, sealer);
        await patchAuth(tx, id, auth, isMoved, sealer);
        await changeSubscription(tx, owner, id, fields);
        if (state === 'disabled') await disableByOwner(tx, owner, id);
        return state === 'active' && subscription.state === 'disabled';
      };
      const mustEnable =
        (await db.transaction().execute((tx) => change(tx, false))) ??
        (await withDeliveryHold(db, deliveriesOf(lane), (tx) => change(tx, true)));
      if (mustEnable) await enable(db, owner, id);
      return representSubscription(await requireSubscription(db, owner, id), owner);
    },
    (valid, errors) => checkSubscription(valid, errors, options, true),
  );
}

function registerSecrets(options: WebhookRoutesOptions, routes: SubscriptionRoutes): void {
  const { db, sealer } = options;

  serve(options, routes.readSecret, async ({ reply, caller: owner, params }) => {
    const { id } = await requireOwnSubscription(db, owner, params.id);
    const secrets = await readSecrets(db, owner, id, sealer);
    if (secrets === undefined) throw subscriptionNotFound();
    reply.header('cache-control', 'no-store');
    return representSecrets(secrets);
  });

  serve(
    options,
    routes.rotateSecret,
    async ({ request, reply, caller: owner, params, body: { secret = makeSecret(), overlap } }) => {
      // Checked here too, because a repeated request with the same idempotency key does not run the callback.
      await requireOwnSubscription(db, owner, params.id);
      return sendIdempotentForOwner(options, request, reply, owner, (outer) =>
        inTransaction(outer, async (tx) => {
          await actAsOwner(tx, owner);
          const { id } = await requireOwnSubscription(tx, owner, params.id);
          const secrets = await rotateSecret(tx, owner, id, secret, overlap ?? overlapSecondsDefault, sealer);
          if (secrets === undefined) throw subscriptionNotFound();
          return { status: 200, headers: {}, body: JSON.stringify(representSecrets(secrets)) };
        }),
      );
    },
    ({ secret }, errors) => checkSecret(secret, errors),
  );
}

/** The event to send; null for a `ping`. */
function exampleOf(name: string | undefined, catalogue: Catalogue) {
  const kind = catalogue.kinds.get(name ?? pingName);
  return kind === undefined || kind.isBuiltIn
    ? null
    : { kind: kind.name, version: kind.version ?? null, body: kind.example };
}

/**
 * Whether a change ends the right to deliveries or moves them to another URL. Such a change needs a delivery hold.
 */
function endsDeliveries(
  current: Subscription,
  { url, kinds, state, headers, auth }: PatchedSubscription,
): boolean {
  return (
    url !== current.url ||
    headers !== undefined ||
    auth !== undefined ||
    state === 'disabled' ||
    !current.kinds.every((kind) => kinds.includes(kind))
  );
}

/**
 * Whether events are sent or pulled is decided at the creation.
 * @throws Problem 422 if a subscriber that pulls would get a URL
 */
function requireSameWay(url: string | undefined, subscription: Subscription): void {
  if (url === undefined || subscription.url !== null) return;
  const errors = new ErrorList();
  errors.add(['url'], 'stays null: create another subscription for a URL', 'pull-only');
  errors.raise();
}

/** A filter must fit the kinds, whichever of them changes. @throws Problem 422 */
function requireFilter(
  given: { filter?: unknown; kinds?: unknown },
  { filter, kinds }: PatchedSubscription,
  { catalogue }: WebhookRoutesOptions,
): void {
  if (given.filter === undefined && given.kinds === undefined) return;
  const errors = new ErrorList();
  checkFilter(filter, kinds, errors, catalogue);
  errors.raise();
}

function changedMeanwhile(): Problem {
  return new Problem(409, 'The subscription was changed meanwhile.', { code: 'busy' });
}

const originOf = (url: string | null) => (url === null ? null : new URL(url).origin);

/** The subject of a delivery hold on one subscription. */
const deliveriesOf = (lane: number) => ({ clientId: null, accountId: null, lane }) as const;

/** @throws Problem 503 while attempts from before it was disabled are in flight, or many retries are being held */
async function enable(db: Database, owner: Owner, id: string): Promise<void> {
  if ((await enableByOwner(db, owner, id)) !== undefined) return;
  throw new Problem(503, 'Deliveries of the subscription are still in flight, or are being held.', {
    code: 'busy',
    headers: { 'retry-after': '15' },
  });
}
