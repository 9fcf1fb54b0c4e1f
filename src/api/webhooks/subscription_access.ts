/** What the routes of webhooks share: their dependencies, access to a subscription, and the creation of one. */

import { sql } from 'kysely';
import { isOwnClient } from '../../clients/own_clients.ts';
import type { Config } from '../../config/config.ts';
import { isId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { JsonResponse } from '../../http/json_response.ts';
import { Problem } from '../../http/problem.ts';
import { dashed } from '../../http/problem_codes.ts';
import type { EventReader } from '../../webhooks/reader/event_reader.ts';
import type { LaneWatch } from '../../webhooks/reader/lane_watch.ts';
import type { WebhookId } from '../../webhooks/sending/agent_message.ts';
import type { Presenter } from '../../webhooks/sending/presentation.ts';
import type { AppSubscriptions } from '../../webhooks/subscriptions/app_subscription_modes.ts';
import { mayOwnSubscriptions } from '../../webhooks/subscriptions/app_subscriptions.ts';
import type { HeaderNames } from '../../webhooks/subscriptions/delivery_headers.ts';
import { makeSecret } from '../../webhooks/subscriptions/signature.ts';
import {
  createSubscription,
  findSubscription,
  type Owner,
  ownerGone,
  type Subscription,
} from '../../webhooks/subscriptions/subscription.ts';
import {
  QuotaExceeded,
  type QuotaUse,
  type SubscriptionQuotas,
} from '../../webhooks/subscriptions/subscription_quotas.ts';
import type { RouteParts } from '../route.ts';
import { requireOwnFilter } from './filter_body.ts';
import { type BodyRules, fieldsOf, type NewSubscription } from './subscription_body.ts';
import { mayChange, representSubscription } from './subscription_representation.ts';
import { challengeNew, type HandshakeRules } from './url_handshake.ts';

export interface WebhookRoutesOptions extends RouteParts, BodyRules, HandshakeRules {
  /** Used to read the log. */
  logDb: Database;
  catalogue: Catalogue;
  sealer: Sealer;
  config: Config;
  appSubscriptions: AppSubscriptions;
  quotas: SubscriptionQuotas;
  headerNames: HeaderNames;
  /** Of deliveries to agents. */
  webhookId: WebhookId;
  presenter: Presenter;
  reader: EventReader;
  watch: LaneWatch;
}

/** A body whose URL has echoed, if it must. */
export type PreparedSubscription = NewSubscription & { secret: string };

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
  if (subscription === undefined) throw subscriptionNotFound();
  return subscription;
}

/**
 * Finds a subscription that the owner may also change.
 * @throws Problem 404 likewise; 403 if the owner is a user and the subscription belongs to an app that acts for them; 409 if an agent
 *   made it
 */
export async function requireOwnSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Subscription> {
  const subscription = await requireSubscription(db, owner, id);
  if (mayChange(subscription, owner)) {
    await refuseAgents(db, id);
    return subscription;
  }
  throw new Problem(
    403,
    'The subscription belongs to an app, and only the app can change it. You can test and delete it.',
    {
      code: 'subscription-of-an-app',
    },
  );
}

/**
 * What an agent subscribed to over the Model Context Protocol changes in the same way only: there, a new URL is challenged.
 * @throws Problem 409
 */
export async function refuseAgents(db: Database | Transaction, id: string): Promise<void> {
  const { rows } = await sql`select from agent_subscriptions where id = ${id}`.execute(db);
  if (rows.length === 0) return;
  throw new Problem(409, 'An agent made the subscription, and only the agent can change it.', {
    code: 'subscription-of-an-agent',
  });
}

export function subscriptionNotFound(): Problem {
  return new Problem(404, 'Subscription not found.');
}

/**
 * Checks what needs the network. Call it outside a transaction, and create the subscription with the body that it returns.
 * @throws Problem 422, 429
 */
export async function prepareCreation(
  options: WebhookRoutesOptions,
  owner: Owner,
  body: NewSubscription,
): Promise<PreparedSubscription> {
  if (owner.kind === 'client') requireOwnFilter(body.filter);
  const { secret = makeSecret() } = body;
  await challengeNew(options, owner, fieldsOf(body, options), body, secret);
  return { ...body, secret };
}

/** @throws Problem 422 if a quota leaves no room, 409 if the owner is gone */
export async function createResponse(
  tx: Database | Transaction,
  options: WebhookRoutesOptions,
  owner: Owner,
  body: PreparedSubscription,
): Promise<JsonResponse> {
  const { headers, auth = null, secret } = body;
  const { sealer, quotas } = options;
  const fields = fieldsOf(body, options);
  const subscription = await createSubscription(tx, owner, fields, secret, sealer, quotas, {
    headers: headers ?? {},
    auth,
  }).catch((error) => {
    throw error instanceof QuotaExceeded ? quotaProblem(error.quota) : error;
  });
  if (subscription === undefined) throw ownerGone();
  const shown = JSON.stringify({ ...representSubscription(subscription, owner), secret });
  return { status: 201, headers: { location: `/subscriptions/${subscription.id}` }, body: shown };
}

const counted: Readonly<Record<QuotaUse['name'], string>> = {
  account_subscriptions: 'subscriptions of the account',
  client_subscriptions: 'subscriptions of the app, which its users share,',
  grant_subscriptions: 'subscriptions of the grant',
  own_subscriptions: 'subscriptions of its own',
  event_deliveries: 'deliveries of one event',
};

function quotaProblem({ name, limit }: QuotaExceeded['quota']): Problem {
  return new Problem(422, `At most ${limit} ${counted[name]} are allowed.`, {
    code: `quota-${dashed(name)}`,
  });
}

/** The operator decides which apps may have subscriptions of their own. @throws Problem 403 */
export async function requireMaySubscribe(
  { db, appSubscriptions }: Pick<WebhookRoutesOptions, 'db' | 'appSubscriptions'>,
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
