/** `/admin/subscriptions`: all subscriptions, without secrets and without bodies of deliveries. */

import { sql } from 'kysely';
import Type from 'typebox';
import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { actAs } from '../../grants/actor.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import { emptyBody, idParameter, queryParameter } from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, StringEnum, strict } from '../../http/schema.ts';
import { readTime } from '../../http/time.ts';
import {
  type Subscription,
  type SubscriptionRow,
  toSubscription,
  withFailing,
  withFilter,
} from '../../webhooks/subscriptions/subscription.ts';
import { disableByOperator } from '../../webhooks/subscriptions/subscription_state.ts';
import { serve } from '../route.ts';
import { subscriptionMembers } from '../webhooks/schemas.ts';
import { representSubscription } from '../webhooks/subscription_representation.ts';
import { AccountLabel, type Names, readNames } from './names.ts';
import { type AdminOptions, actRoute, listRoute, readRoute } from './options.ts';
import {
  accountParameter,
  clientParameter,
  parameterProblem,
  readChoice,
  readIdParameter,
  readTextParameter,
} from './parameters.ts';
import { scanPage } from './scan_page.ts';

const AdminSubscription = named(
  'AdminSubscription',
  Type.Object(
    {
      ...subscriptionMembers,
      account: Nullable(Id()),
      account_name: AccountLabel(),
      client_name: Nullable(Type.String()),
    },
    strict,
  ),
);

const id = idParameter('subscription');

export const subscriptionRoutes = {
  list: listRoute(
    'list_all_subscriptions',
    '/admin/subscriptions',
    'List all subscriptions',
    AdminSubscription,
    [
      accountParameter,
      clientParameter,
      queryParameter('state', 'Only subscriptions in this state.', StringEnum('active', 'disabled')),
      queryParameter(
        'failing',
        'Only subscriptions that will be disabled unless a delivery succeeds, soonest first.',
        StringEnum('true'),
      ),
    ],
  ),
  read: readRoute(
    'read_any_subscription',
    '/admin/subscriptions/{id}',
    'Read any subscription',
    AdminSubscription,
    [id],
  ),
  disable: actRoute(
    'disable_subscription',
    '/admin/subscriptions/{id}/disable',
    'Disable a subscription; its owner can enable it again',
    AdminSubscription,
    id,
    emptyBody,
  ),
};

export function registerAdminSubscriptions(options: AdminOptions): void {
  const { db } = options;

  serve(options, subscriptionRoutes.list, async ({ request, reply }) => {
    const page = readPage(request, ['account', 'client', 'state', 'failing']);
    const account = readIdParameter(page.parameters, 'account');
    const client = readTextParameter(page.parameters, 'client', 2_048);
    const state = readChoice(page.parameters, 'state', ['active', 'disabled']);
    const isFailing = readChoice(page.parameters, 'failing', ['true']) !== null;
    if (isFailing && (account ?? client) !== null) {
      throw parameterProblem(
        'failing=true cannot be combined with account or client.',
        'parameters-exclude-each-other',
      );
    }
    const key = isFailing ? failingKey : ({ id }: Subscription) => id;
    if (page.after !== null && !(isFailing ? isFailingKey(page.after) : isId(page.after)))
      throw page.invalid();
    const read = (after: string | null, count: number) =>
      isFailing ? listFailing(db, after, count) : listAll(db, account, client, after, count);
    const matches = (subscription: Subscription) =>
      (state === null || subscription.state === state) &&
      (client === null || subscription.clientId === client);
    const hasFilter = state !== null || (client !== null && account !== null);
    const { found, more } = await scanPage(read, hasFilter ? matches : null, key, page);
    const names = await namesOf(db, found);
    const show = (subscription: Subscription) => represent(subscription, names);
    return sendPage(request, reply, page, found, show, key, more);
  });

  serve(options, subscriptionRoutes.read, ({ params }) => read(db, params.id));

  serve(options, subscriptionRoutes.disable, async ({ caller, params }) => {
    const { id, lane } = await requireSubscription(db, params.id);
    await withDeliveryHold(db, { clientId: null, accountId: null, lane }, async (tx) => {
      await actAs(tx, caller);
      await disableByOperator(tx, id);
    });
    return read(db, id);
  });
}

/** Lists subscriptions, newest first. */
async function listAll(
  db: Database,
  account: string | null,
  client: string | null,
  after: string | null,
  count: number,
): Promise<Subscription[]> {
  const of =
    account !== null
      ? sql`and subscriptions.account_id = ${account}`
      : client !== null
        ? sql`and subscriptions.client_id = ${client}`
        : sql``;
  const next = after === null ? sql`` : sql`and subscriptions.id < ${after}`;
  const { rows } = await sql<SubscriptionRow>`
    select ${withFailing} where subscriptions.state <> 'ended' ${of} ${next}
    order by subscriptions.id desc limit ${count}`.execute(db);
  return rows.map(toSubscription);
}

/** Lists subscriptions whose owners were warned because all recent deliveries failed. Sorted by the time of disabling. */
async function listFailing(db: Database, after: string | null, count: number): Promise<Subscription[]> {
  const [at, lane] = after?.split(' ') ?? [];
  const next =
    at === undefined
      ? sql``
      : sql`and (date_trunc('milliseconds', w.disables_at), w.lane) > (${at}::timestamptz, ${lane}::bigint)
          and w.disables_at >= ${at}::timestamptz`;
  const { rows } = await sql<SubscriptionRow>`
    select ${withFilter}, p.failing_since, w.disables_at
    from failing_warnings w
    join lane_progress p on p.lane = w.lane and p.failing_since = w.failing_since
    join subscriptions on subscriptions.lane = w.lane and subscriptions.state = 'active'
    where true ${next} order by w.disables_at, w.lane limit ${count}`.execute(db);
  return rows.map(toSubscription);
}

function failingKey({ disablesAt, lane }: Subscription): string {
  return `${disablesAt?.toISOString()} ${lane}`;
}

function isFailingKey(text: string): boolean {
  const [at, lane = '', ...others] = text.split(' ');
  return readTime(at) !== undefined && /^\d{1,16}$/.test(lane) && others.length === 0;
}

async function requireSubscription(db: Database, id: string): Promise<Subscription> {
  const { rows } = isId(id)
    ? await sql<SubscriptionRow>`
        select ${withFailing} where subscriptions.id = ${id} and subscriptions.state <> 'ended'`.execute(db)
    : { rows: [] };
  if (rows[0] === undefined) throw new Problem(404, 'Subscription not found.');
  return toSubscription(rows[0]);
}

async function read(db: Database, id: string): Promise<Record<string, unknown>> {
  const subscription = await requireSubscription(db, id);
  return represent(subscription, await namesOf(db, [subscription]));
}

function namesOf(db: Database, subscriptions: readonly Subscription[]): Promise<Names> {
  return readNames(
    db,
    subscriptions.map(({ accountId }) => accountId),
    subscriptions.map(({ clientId }) => clientId),
  );
}

function represent(subscription: Subscription, names: Names): Record<string, unknown> {
  const { id, state, accountId, clientId } = subscription;
  const self = `/admin/subscriptions/${id}`;
  const shown = representSubscription(subscription, {
    kind: 'client',
    clientId: clientId ?? '',
    creatorId: null,
  });
  return {
    ...shown,
    account: accountId,
    account_name: names.account(accountId),
    client_name: names.client(clientId),
    _links: {
      self: { href: self },
      ...(state === 'active' ? { disable: { href: `${self}/disable`, method: 'POST' } } : {}),
    },
  };
}
