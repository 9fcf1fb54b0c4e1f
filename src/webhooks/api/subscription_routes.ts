/**
 * The registration API: `/subscriptions`. A token shows only its owner's subscriptions; those of others are 404. In
 * the console, a user also sees the subscriptions of apps that act for them, and may test and delete them.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import { consoleClientId, isOwnClient } from '../../clients/own_clients.ts';
import type { Config } from '../../config/config.ts';
import { isId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { pingName } from '../../events/built_in_names.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import type { Guard, Principal } from '../../grants/principal.ts';
import { jsonPatchType } from '../../http/api.ts';
import type { JsonResponse } from '../../http/json_response.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { bodyProblem, Problem } from '../../http/problem.ts';
import { sendTest } from '../log/resend.ts';
import type { HeaderNames } from '../sending/header_names.ts';
import { type AppSubscriptions, mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';
import type { Quotas } from '../subscriptions/quotas.ts';
import { makeSecret } from '../subscriptions/signature.ts';
import { patchHeaders, type StaticHeaders } from '../subscriptions/static_headers.ts';
import {
  actAsOwner,
  changeSubscription,
  createSubscription,
  endSubscription,
  findSubscription,
  listSubscriptions,
  lockSubscription,
  type Owner,
  ownerGone,
  readSecrets,
  rotateSecret,
  type Subscription,
  type SubscriptionFields,
} from '../subscriptions/subscription.ts';
import {
  type BodyRules,
  readRotation,
  readSubscriptionFields,
  readSubscriptionPatch,
  readTestKind,
} from '../subscriptions/subscription_body.ts';
import { QuotaExceeded, type QuotaUse } from '../subscriptions/subscription_quotas.ts';
import { disableByOwner, enableByOwner } from '../subscriptions/subscription_state.ts';
import { sendIdempotentForOwner } from './idempotency.ts';
import { mayChange, representSecrets, representSubscription } from './subscription_representation.ts';

export interface RoutesOptions {
  api: FastifyInstance;
  db: Database;
  guard: Guard;
  catalogue: Catalogue;
  sealer: Sealer;
  config: Config;
  appSubscriptions: AppSubscriptions;
  quotas: Quotas;
  headerNames: HeaderNames;
}

export function bodyRules({ catalogue, config, headerNames }: RoutesOptions): BodyRules {
  return {
    catalogue,
    allowInsecure: config.insecureSubscribers,
    headerNames: Object.values(headerNames),
  };
}

/**
 * Whose subscriptions a token gives access to. The console's token speaks for the user. With `read:apps` or
 * `write:apps`, a token also covers the own subscriptions of the user's apps.
 */
export function ownerOf(principal: Principal, action: 'read' | 'write'): Owner {
  const { accountId, clientId, grantId, scopes } = principal;
  const memberId = scopes.has(`${action}:apps`) ? accountId : null;
  if (accountId !== null && clientId === consoleClientId)
    return { kind: 'user', accountId, memberId, grantId };
  return accountId !== null && grantId !== null
    ? { kind: 'grant', grantId, accountId, clientId, memberId }
    : { kind: 'client', clientId };
}

export function registerSubscriptions(options: RoutesOptions): void {
  const { api, db, guard } = options;
  const rules = bodyRules(options);
  registerChange(options);
  registerSecrets(options);

  api.post('/subscriptions', async (request, reply) => {
    const owner = await writerOf(guard, request);
    await requireMaySubscribe(options, owner);
    const { secret, ...fields } = readSubscriptionFields(request.body, rules);
    const shown = secret ?? makeSecret();
    return sendIdempotentForOwner(options, request, reply, owner, (outer) =>
      inTransaction(outer, async (tx) => {
        await actAsOwner(tx, owner);
        return createResponse(tx, options, owner, fields, shown);
      }),
    );
  });

  api.get('/subscriptions', async (request, reply) => {
    const owner = await readerOf(guard, request);
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listSubscriptions(db, owner, page.limit + 1, page.after);
    const show = (subscription: Subscription) => representSubscription(subscription, owner);
    return sendPage(request, reply, page, found, show, ({ id }) => id);
  });

  api.get<IdRoute>('/subscriptions/:id', async (request) => {
    const owner = await readerOf(guard, request);
    return representSubscription(await requireSubscription(db, owner, request.params.id), owner);
  });

  api.delete<IdRoute>('/subscriptions/:id', async (request, reply) => {
    const owner = await writerOf(guard, request);
    const { id, lane } = await requireSubscription(db, owner, request.params.id);
    const isEnded = await withDeliveryHold(db, deliveriesOf(lane), async (tx) => {
      await actAsOwner(tx, owner);
      return endSubscription(tx, owner, id);
    });
    if (!isEnded) throw notFound();
    return reply.code(204).send();
  });

  api.post<IdRoute>('/subscriptions/:id/test', async (request, reply) => {
    const owner = await writerOf(guard, request);
    const example = readExample(request.body, options.catalogue);
    return sendIdempotentForOwner(options, request, reply, owner, async (tx) => {
      const subscription = await requireSubscription(tx, owner, request.params.id);
      if (subscription.state !== 'active') {
        throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
      }
      const id = await sendTest(tx, subscription, example);
      const body = { delivery: id, _links: { delivery: { href: `/deliveries/${id}` } } };
      return { status: 202, headers: { location: `/deliveries/${id}` }, body: JSON.stringify(body) };
    });
  });
}

async function readerOf(guard: Guard, request: FastifyRequest): Promise<Owner> {
  return ownerOf(await guard(request, 'read:webhooks'), 'read');
}

async function writerOf(guard: Guard, request: FastifyRequest): Promise<Owner> {
  return ownerOf(await guard(request, 'write:webhooks'), 'write');
}

function registerChange(options: RoutesOptions): void {
  const { api, db, guard, sealer } = options;
  const rules = bodyRules(options);

  api.patch<IdRoute>('/subscriptions/:id', async (request) => {
    const owner = await writerOf(guard, request);
    if (request.headers['content-type']?.startsWith(jsonPatchType)) {
      throw new Problem(415, 'Send the change as application/merge-patch+json.', {
        code: 'unsupported-media-type',
      });
    }
    const current = await requireOwnSubscription(db, owner, request.params.id);
    const { id, lane } = current;
    // Rejects an invalid body before deliveries are put on hold.
    readSubscriptionPatch(request.body, current, rules);
    /**
     * @returns whether the subscription must be enabled afterwards; undefined if the change needs a delivery hold and
     *   has none
     */
    const change = async (tx: Transaction, isOnHold: boolean): Promise<boolean | undefined> => {
      await actAsOwner(tx, owner);
      await lockSubscription(tx, owner, id);
      const subscription = await requireSubscription(tx, owner, id);
      const patched = readSubscriptionPatch(request.body, subscription, rules);
      if (!isOnHold && endsDeliveries(subscription, patched)) return undefined;
      const { state, headers, ...fields } = patched;
      const isMoved = new URL(fields.url).origin !== new URL(subscription.url).origin;
      await patchHeaders(tx, id, headers, isMoved, sealer);
      await changeSubscription(tx, owner, id, fields);
      if (state === 'disabled') await disableByOwner(tx, owner, id);
      return state === 'active' && subscription.state === 'disabled';
    };
    const mustEnable =
      (await db.transaction().execute((tx) => change(tx, false))) ??
      (await withDeliveryHold(db, deliveriesOf(lane), (tx) => change(tx, true)));
    if (mustEnable) await enable(db, owner, id);
    return representSubscription(await requireSubscription(db, owner, id), owner);
  });
}

function registerSecrets(options: RoutesOptions): void {
  const { api, db, guard, sealer } = options;

  api.get<IdRoute>('/subscriptions/:id/secret', async (request, reply) => {
    const owner = await writerOf(guard, request);
    const { id } = await requireOwnSubscription(db, owner, request.params.id);
    const secrets = await readSecrets(db, owner, id, sealer);
    if (secrets === undefined) throw notFound();
    reply.header('cache-control', 'no-store');
    return representSecrets(secrets);
  });

  api.post<IdRoute>('/subscriptions/:id/rotate-secret', async (request, reply) => {
    const owner = await writerOf(guard, request);
    const { secret, overlapSeconds } = readRotation(request.body);
    // Checked here too, because a repeated request with the same idempotency key does not run the callback.
    await requireOwnSubscription(db, owner, request.params.id);
    return sendIdempotentForOwner(options, request, reply, owner, (outer) =>
      inTransaction(outer, async (tx) => {
        await actAsOwner(tx, owner);
        const { id } = await requireOwnSubscription(tx, owner, request.params.id);
        const secrets = await rotateSecret(tx, owner, id, secret ?? makeSecret(), overlapSeconds, sealer);
        if (secrets === undefined) throw notFound();
        return { status: 200, headers: {}, body: JSON.stringify(representSecrets(secrets)) };
      }),
    );
  });
}

/** The test event to send; null for a `ping`. @throws Problem 422 */
function readExample(body: unknown, catalogue: Catalogue): { kind: string; body: unknown } | null {
  const name = readTestKind(body);
  if (name === undefined) return null;
  const kind = catalogue.kinds.get(name);
  if (kind !== undefined && !kind.isBuiltIn) return { kind: name, body: kind.example };
  if (name === pingName) return null;
  const message = 'must be a kind in the catalogue';
  throw bodyProblem([{ pointer: '/kind', message, code: 'unknown_kind' }]);
}

interface IdRoute {
  Params: { id: string };
}

/**
 * Finds a subscription that the owner may see, delete and test.
 * @throws Problem 404 if it does not exist or belongs to others
 */
export async function requireSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Subscription> {
  const subscription = isId(id) ? await findSubscription(db, owner, id) : undefined;
  if (subscription === undefined) throw notFound();
  return subscription;
}

/**
 * Finds a subscription that the owner may also change.
 * @throws Problem 404 likewise; 403 if the owner is a user and the subscription belongs to an app that acts for them
 */
export async function requireOwnSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Subscription> {
  const subscription = await requireSubscription(db, owner, id);
  if (mayChange(subscription, owner)) return subscription;
  throw new Problem(
    403,
    'The subscription belongs to an app, and only the app can change it. You can test and delete it.',
    {
      code: 'subscription-of-an-app',
    },
  );
}

function notFound(): Problem {
  return new Problem(404, 'Subscription not found.');
}

/** @throws Problem 422 if a quota leaves no room, 409 if the owner is gone */
export async function createResponse(
  tx: Database | Transaction,
  { sealer, quotas }: Pick<RoutesOptions, 'sealer' | 'quotas'>,
  owner: Owner,
  { headers, ...fields }: SubscriptionFields & { headers: StaticHeaders },
  secret: string,
): Promise<JsonResponse> {
  const subscription = await createSubscription(tx, owner, fields, secret, sealer, headers, quotas).catch(
    (error) => {
      throw error instanceof QuotaExceeded ? quotaProblem(error.quota) : error;
    },
  );
  if (subscription === undefined) throw ownerGone();
  const body = JSON.stringify({ ...representSubscription(subscription, owner), secret });
  return { status: 201, headers: { location: `/subscriptions/${subscription.id}` }, body };
}

const counted: Readonly<Record<QuotaUse['name'], string>> = {
  account_subscriptions: 'subscriptions of the account',
  client_subscriptions: 'subscriptions of the app',
  grant_subscriptions: 'subscriptions of the grant',
  own_subscriptions: 'subscriptions of its own',
  event_deliveries: 'deliveries of one event',
};

function quotaProblem({ name, limit }: QuotaUse): Problem {
  return new Problem(422, `At most ${limit} ${counted[name]} are allowed.`, {
    code: `quota-${name.replace('_', '-')}`,
  });
}

/** The operator decides which apps may have subscriptions of their own. @throws Problem 403 */
export async function requireMaySubscribe(
  { db, appSubscriptions }: Pick<RoutesOptions, 'db' | 'appSubscriptions'>,
  owner: Owner,
): Promise<void> {
  if (owner.kind !== 'client') return;
  const { rows } = await sql`
    select from clients c where c.id = ${owner.clientId} and ${mayOwnSubscriptions(appSubscriptions)}`.execute(
    db,
  );
  // The server's own apps always speak for users.
  if (rows.length > 0 && !isOwnClient(owner.clientId)) return;
  const reason =
    appSubscriptions === 'verified'
      ? 'Only verified apps can have subscriptions of their own.'
      : 'This app cannot have subscriptions of its own.';
  throw new Problem(403, `${reason} To subscribe for a user, use the user’s access token.`, {
    code: 'app-subscriptions-off',
  });
}

/**
 * Whether a change ends the right to deliveries or moves them to another URL. Such a change needs a delivery hold.
 */
function endsDeliveries(
  current: Subscription,
  { url, kinds, state, headers }: ReturnType<typeof readSubscriptionPatch>,
): boolean {
  return (
    url !== current.url ||
    headers !== undefined ||
    state === 'disabled' ||
    !current.kinds.every((kind) => kinds.includes(kind))
  );
}

/** The subject of a delivery hold on one subscription. */
const deliveriesOf = (lane: number) => ({ clientId: null, accountId: null, lane }) as const;

/** @throws Problem 503 while attempts from before it was disabled are in flight */
async function enable(db: Database, owner: Owner, id: string): Promise<void> {
  if ((await enableByOwner(db, owner, id)) !== undefined) return;
  throw new Problem(503, 'Attempts of the subscription are still in flight.', {
    code: 'busy',
    headers: { 'retry-after': '15' },
  });
}
