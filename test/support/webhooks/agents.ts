/** Subscriptions of agents for tests of what is sent to them, made in the database. */

import { createSealer } from '../../../src/crypto/sealing.ts';
import { agentScheduleSeconds } from '../../../src/webhooks/sending/delivery_policy.ts';
import { agentKey } from '../../../src/webhooks/subscriptions/agent_key.ts';
import {
  type AgentSubscription,
  createAgentSubscription,
  type NewAgentSubscription,
} from '../../../src/webhooks/subscriptions/agent_subscription.ts';
import { SubscriptionQuotas } from '../../../src/webhooks/subscriptions/subscription_quotas.ts';
import { type TestServer, testSecret } from '../servers/server.ts';
import type { App } from './apps.ts';

/** Of the vectors. */
export const agentSecret = 'whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=';
export const otherAgentSecret = 'whsec_//79/Pv6+fj39vX08/Lx8O/u7ezr6uno';

/** An agent's webhook for the kind `push`, whose URL counts as challenged. */
export async function addAgentWebhook(
  { db }: Pick<TestServer, 'db'>,
  { grantId, clientId, account }: App,
  url: string,
  fields: Partial<NewAgentSubscription> = {},
): Promise<AgentSubscription> {
  const name = 'push';
  const normalized = new URL(url).href;
  const made = await createAgentSubscription(
    db,
    {
      owner: { kind: 'grant', grantId, clientId, accountId: account.id },
      mode: 'webhook',
      key: agentKey({ principal: grantId, url: normalized, name, arguments: '{}' }),
      name,
      arguments: '{}',
      scope: null,
      filter: null,
      url: normalized,
      secret: agentSecret,
      format: 'agent',
      version: null,
      description: '',
      retrySchedule: [...agentScheduleSeconds],
      lifetimeMs: 3_600_000,
      isVerified: true,
      ...fields,
    },
    createSealer(testSecret, 'subscription-secret'),
    new SubscriptionQuotas(db),
    { subscriptionsPerGrant: 20, subscriptionsPerAccount: 100 },
  );
  if (made === undefined) throw new Error('the grant is withdrawn');
  return made.subscription;
}
