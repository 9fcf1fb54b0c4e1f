/**
 * The registration API: `/subscriptions`. Whoever's token it is sees their own subscriptions and nobody else's; what
 * belongs to another is not there (404). A user who comes by the settings interface also sees those of the apps that
 * act for them, and may try and end them.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import { consoleClientId } from '../../clients/own_clients.ts';
import type { Config } from '../../config/config.ts';
import { isId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { Guard, Principal } from '../../grants/principal.ts';
import { duringStandstill } from '../../grants/standstill.ts';
import { jsonPatchType } from '../../http/api.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { sendPing } from '../log/delivery.ts';
import { makeSecret } from '../subscriptions/signature.ts';
import {
  changeSubscription,
  createSubscription,
  endSubscription,
  findSubscription,
  listSubscriptions,
  lockSubscription,
  type Owner,
  readSecrets,
  rotateSecret,
  type Secrets,
  type Subscription,
} from '../subscriptions/subscription.ts';
import {
  readRotation,
  readSubscriptionFields,
  readSubscriptionPatch,
} from '../subscriptions/subscription_body.ts';
import { disableByOwner, enableByOwner } from '../subscriptions/subscription_state.ts';
import { sendOnce } from './once.ts';

export interface RoutesOptions {
  api: FastifyInstance;
  db: Database;
  guard: Guard;
  catalogue: Catalogue;
  sealer: Sealer;
  config: Config;
}

/** Whose subscriptions a token is about. By the server's own settings interface it is the user themself who speaks. */
export function ownerOf(principal: Principal): Owner {
  const { accountId, clientId, grantId } = principal;
  if (accountId !== null && clientId === consoleClientId) return { kind: 'user', accountId };
  return accountId !== null && grantId !== null
    ? { kind: 'grant', grantId, accountId, clientId }
    : { kind: 'client', clientId };
}

export function registerSubscriptions(options: RoutesOptions): void {
  const { api, db, guard, catalogue, sealer, config } = options;
  const rules = { catalogue, allowInsecure: config.insecureSubscribers };
  const reader = async (request: FastifyRequest) => ownerOf(await guard(request, 'read:webhooks'));
  const writer = async (request: FastifyRequest) => ownerOf(await guard(request, 'write:webhooks'));

  api.post('/subscriptions', async (request, reply) => {
    const owner = await writer(request);
    await checkMaySubscribe(db, owner);
    const { secret, ...fields } = readSubscriptionFields(request.body, rules);
    const shown = secret ?? makeSecret();
    return sendOnce(options, request, reply, owner, async (tx) => {
      const subscription = await createSubscription(tx, owner, fields, shown, sealer);
      if (subscription === undefined) {
        throw new Problem(
          409,
          'There are as many subscriptions as there may be, or the grant was withdrawn.',
          {
            code: 'no-more-subscriptions',
          },
        );
      }
      const headers = { location: `/subscriptions/${subscription.id}` };
      return {
        status: 201,
        headers,
        body: JSON.stringify({ ...represent(subscription, owner), secret: shown }),
      };
    });
  });

  api.get('/subscriptions', async (request, reply) => {
    const owner = await reader(request);
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listSubscriptions(db, owner, page.limit + 1, page.after);
    const show = (subscription: Subscription) => represent(subscription, owner);
    return sendPage(request, reply, page, found, show, ({ id }) => id);
  });

  api.get<IdRoute>('/subscriptions/:id', async (request) => {
    const owner = await reader(request);
    return represent(await requireSubscription(db, owner, request.params.id), owner);
  });

  api.patch<IdRoute>('/subscriptions/:id', async (request) => {
    const owner = await writer(request);
    if (request.headers['content-type']?.startsWith(jsonPatchType)) {
      throw new Problem(415, 'A subscription is changed by application/merge-patch+json.', {
        code: 'unsupported-media-type',
      });
    }
    const current = await requireOwnSubscription(db, owner, request.params.id);
    const { id, lane } = current;
    // What is wrong anyway keeps nothing back.
    readSubscriptionPatch(request.body, current, rules);
    const mustEnable = await duringStandstill(db, deliveriesOf(lane), async (tx) => {
      await lockSubscription(tx, owner, id);
      const subscription = await requireSubscription(tx, owner, id);
      const { state, ...fields } = readSubscriptionPatch(request.body, subscription, rules);
      await changeSubscription(tx, owner, id, fields);
      if (state === 'disabled') await disableByOwner(tx, owner, id);
      return state === 'active' && subscription.state === 'disabled';
    });
    if (mustEnable) await enable(db, owner, id);
    return represent(await requireSubscription(db, owner, id), owner);
  });

  api.delete<IdRoute>('/subscriptions/:id', async (request, reply) => {
    const owner = await writer(request);
    const { id, lane } = await requireSubscription(db, owner, request.params.id);
    const isEnded = await duringStandstill(db, deliveriesOf(lane), (tx) => endSubscription(tx, owner, id));
    if (!isEnded) throw notFound();
    return reply.code(204).send();
  });

  api.get<IdRoute>('/subscriptions/:id/secret', async (request, reply) => {
    const owner = await writer(request);
    const { id } = await requireOwnSubscription(db, owner, request.params.id);
    const secrets = await readSecrets(db, owner, id, sealer);
    if (secrets === undefined) throw notFound();
    reply.header('cache-control', 'no-store');
    return representSecrets(secrets);
  });

  api.post<IdRoute>('/subscriptions/:id/rotate-secret', async (request, reply) => {
    const owner = await writer(request);
    const { secret, overlapSeconds } = readRotation(request.body);
    return sendOnce(options, request, reply, owner, async (tx) => {
      const { id } = await requireOwnSubscription(tx, owner, request.params.id);
      const secrets = await rotateSecret(tx, owner, id, secret ?? makeSecret(), overlapSeconds, sealer);
      if (secrets === undefined) throw notFound();
      const headers = { 'cache-control': 'no-store' };
      return { status: 200, headers, body: JSON.stringify(representSecrets(secrets)) };
    });
  });

  api.post<IdRoute>('/subscriptions/:id/test', async (request, reply) => {
    const owner = await writer(request);
    return sendOnce(options, request, reply, owner, async (tx) => {
      const subscription = await requireSubscription(tx, owner, request.params.id);
      if (subscription.state !== 'active') {
        throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
      }
      const id = await sendPing(tx, subscription);
      const body = { delivery: id, _links: { delivery: { href: `/deliveries/${id}` } } };
      return { status: 202, headers: { location: `/deliveries/${id}` }, body: JSON.stringify(body) };
    });
  });
}

interface IdRoute {
  Params: { id: string };
}

/** One that the owner may see, end and try. @throws Problem 404 for what is not there or not theirs to see */
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
 * One that the owner may change, too.
 * @throws Problem 404 likewise, 403 for a user's look at what an app that acts for them has made
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
    'The subscription is an app’s: only the app changes it. You can test and delete it.',
    {
      code: 'subscription-of-an-app',
    },
  );
}

/** The URL and the secret of a grant's subscription are between its app and this server. */
function mayChange({ grantId }: Subscription, owner: Owner): boolean {
  return owner.kind !== 'user' || grantId === null;
}

function notFound(): Problem {
  return new Problem(404, 'There is no such subscription.');
}

/** The operator says which clients hear of everybody who granted them. */
async function checkMaySubscribe(db: Database, owner: Owner): Promise<void> {
  if (owner.kind !== 'client') return;
  const { rows } = await sql`
    select id from clients where id = ${owner.clientId} and may_subscribe and disabled_at is null`.execute(
    db,
  );
  if (rows.length > 0) return;
  throw new Problem(403, 'This client may not subscribe for itself; it may for a user, with their token.', {
    code: 'client-may-not-subscribe',
  });
}

/** Nothing is started by what is about to be over once it is, nor at its old address. */
const deliveriesOf = (lane: number) => ({ clientId: null, accountId: null, lane }) as const;

/** @throws Problem 503 while attempts from before it was disabled are under way */
async function enable(db: Database, owner: Owner, id: string): Promise<void> {
  if ((await enableByOwner(db, owner, id)) !== undefined) return;
  throw new Problem(503, 'Attempts of the subscription are still under way.', {
    code: 'busy',
    headers: { 'retry-after': '15' },
  });
}

function represent(subscription: Subscription, owner: Owner): Record<string, unknown> {
  const { id, state, disabledReason, grantId, accountId, clientId } = subscription;
  const self = `/subscriptions/${id}`;
  return {
    id,
    url: subscription.url,
    kinds: subscription.kinds,
    signature: subscription.signature,
    format: subscription.format,
    ordered: subscription.ordered,
    rate_limit: subscription.rateLimit,
    retry_schedule: subscription.retrySchedule,
    description: subscription.description,
    state,
    ...(state === 'disabled' ? { disabled_reason: disabledReason } : {}),
    failing_since: subscription.failingSince?.toISOString() ?? null,
    disables_at: subscription.disablesAt?.toISOString() ?? null,
    owner: grantId !== null ? 'grant' : accountId !== null ? 'user' : 'client',
    grant: grantId,
    client: clientId,
    created_at: subscription.createdAt.toISOString(),
    updated_at: subscription.updatedAt.toISOString(),
    _links: {
      self: { href: self },
      deliveries: { href: `${self}/deliveries` },
      test: { href: `${self}/test`, method: 'POST' },
      ...(mayChange(subscription, owner)
        ? {
            secret: { href: `${self}/secret` },
            'rotate-secret': { href: `${self}/rotate-secret`, method: 'POST' },
            recover: { href: `${self}/recover`, method: 'POST' },
          }
        : {}),
    },
  };
}

function representSecrets({ secret, previous }: Secrets): Record<string, unknown> {
  const isLive = previous !== null && previous.until.getTime() > Date.now();
  return {
    secret,
    previous_secret: isLive ? previous.secret : null,
    previous_secret_until: isLive ? previous.until.toISOString() : null,
  };
}
