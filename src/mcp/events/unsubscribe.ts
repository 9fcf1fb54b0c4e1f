/** `events/unsubscribe`: ends the subscription of a webhook. Nothing is sent after its result, except what is in flight. */

import type { Database } from '../../database/database.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import { parseUrl } from '../../shared/url.ts';
import { agentKey } from '../../webhooks/subscriptions/agent_key.ts';
import { findAgentSubscription, unsubscribeAgent } from '../../webhooks/subscriptions/agent_subscription.ts';
import { isObject } from '../json_rpc.ts';
import { readCanonical } from './arguments.ts';
import { refusedParams } from './errors.ts';

/**
 * The kind may be gone meanwhile, so only the identity is read. An unknown subscription is no error.
 * @throws RpcError InvalidParams
 */
export async function unsubscribe(
  db: Database,
  grantId: string,
  name: string,
  params: Readonly<Record<string, unknown>>,
): Promise<void> {
  const canonical = readCanonical(params.arguments);
  if (params.delivery === undefined) throw refusedParams('delivery', 'required');
  if (!isObject(params.delivery)) throw refusedParams('delivery', 'invalid_type');
  const { url: given } = params.delivery;
  if (given === undefined) throw refusedParams('delivery.url', 'required');
  const url = typeof given === 'string' ? parseUrl(given)?.href : undefined;
  if (url === undefined) throw refusedParams('delivery.url', 'invalid_url');
  const key = agentKey({ principal: grantId, url, name, arguments: canonical });
  const found = await findAgentSubscription(db, key, 'webhook');
  if (found === undefined) return;
  const subject = { clientId: null, accountId: null, lane: found.lane } as const;
  await withDeliveryHold(db, subject, (tx) => unsubscribeAgent(tx, key, 'webhook'));
}
