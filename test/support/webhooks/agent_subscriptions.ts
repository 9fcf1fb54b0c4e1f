/** Subscriptions of agents for tests, written into the server's database. */

import { createSealer } from '../../../src/crypto/sealing.ts';
import type { Database } from '../../../src/database/database.ts';
import { agentKey } from '../../../src/webhooks/subscriptions/agent_key.ts';
import {
  type AgentQuotas,
  createAgentSubscription,
  type NewAgentSubscription,
} from '../../../src/webhooks/subscriptions/agent_subscription.ts';
import { makeSecret } from '../../../src/webhooks/subscriptions/signature.ts';
import { SubscriptionQuotas } from '../../../src/webhooks/subscriptions/subscription_quotas.ts';
import { testSecret } from '../servers/server.ts';
import type { App } from './apps.ts';

const sealer = createSealer(testSecret, 'subscription-secret');

/** A webhook of the kind `push` for an hour, unless the fields say otherwise. */
export function wantedSubscription(
  { grantId, clientId, account }: Pick<App, 'grantId' | 'clientId' | 'account'>,
  fields: Partial<NewAgentSubscription> = {},
): NewAgentSubscription {
  const { url = 'https://hooks.example.com/cb', name = 'push' } = fields;
  const given = fields.arguments ?? '{}';
  return {
    owner: { kind: 'grant', grantId, clientId, accountId: account.id },
    mode: 'webhook',
    key: agentKey({ principal: grantId, url, name, arguments: given }),
    name,
    arguments: given,
    scope: 'read:posts',
    filter: null,
    url,
    secret: makeSecret(),
    format: 'json',
    version: null,
    description: '',
    retrySchedule: null,
    lifetimeMs: 3_600_000,
    isVerified: true,
    ...fields,
  };
}

/** @returns undefined if the grant was withdrawn */
export function addAgentSubscription(
  db: Database,
  app: Pick<App, 'grantId' | 'clientId' | 'account'>,
  fields: Partial<NewAgentSubscription> = {},
  limits: AgentQuotas = { subscriptionsPerGrant: 20, subscriptionsPerAccount: 100 },
) {
  return createAgentSubscription(
    db,
    wantedSubscription(app, fields),
    sealer,
    new SubscriptionQuotas(db),
    limits,
  );
}
