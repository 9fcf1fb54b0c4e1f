/** Subscriptions and their secrets in responses. */

import type { Acknowledgement } from '../../webhooks/reader/acknowledgement.ts';
import { maskedValue } from '../../webhooks/subscriptions/static_headers.ts';
import type { Owner, Subscription } from '../../webhooks/subscriptions/subscription.ts';
import type { Secrets } from '../../webhooks/subscriptions/subscription_secrets.ts';

/** The URL and the secret of a grant's subscription are between the app and this server. */
export function mayChange({ grantId }: Subscription, owner: Owner): boolean {
  return owner.kind !== 'user' || grantId === null;
}

export function representSubscription(subscription: Subscription, owner: Owner): Record<string, unknown> {
  const { id, state, disabledReason, grantId, accountId, clientId } = subscription;
  const self = `/subscriptions/${id}`;
  const isOfAgent = subscription.format === 'agent';
  return {
    id,
    url: subscription.url,
    kinds: subscription.kinds,
    signature: subscription.signature,
    format: subscription.format,
    version: subscription.version,
    ordered: subscription.ordered,
    rate_limit: subscription.rateLimit,
    retry_schedule: subscription.retrySchedule,
    filter: subscription.filter,
    description: subscription.description,
    headers: Object.fromEntries(subscription.headerNames.map((name) => [name, maskedValue])),
    auth: subscription.auth,
    handshake: subscription.handshake,
    state,
    ...(state === 'disabled' ? { disabled_reason: disabledReason } : {}),
    failing_since: subscription.failingSince?.toISOString() ?? null,
    disables_at: subscription.disablesAt?.toISOString() ?? null,
    acknowledged: representAcknowledgement(subscription.acknowledged),
    agent: subscription.agent && {
      mode: subscription.agent.mode,
      expires_at: subscription.agent.expiresAt.toISOString(),
    },
    owner: grantId !== null ? 'grant' : accountId !== null ? 'user' : 'client',
    grant: grantId,
    client: clientId,
    created_at: subscription.createdAt.toISOString(),
    updated_at: subscription.updatedAt.toISOString(),
    _links: {
      self: { href: self },
      deliveries: { href: `${self}/deliveries` },
      health: { href: `${self}/health` },
      ...(isOfAgent ? {} : { test: { href: `${self}/test`, method: 'POST' } }),
      ...(mayChange(subscription, owner) && !isOfAgent
        ? {
            events: { href: `${self}/events` },
            secret: { href: `${self}/secret` },
            'rotate-secret': { href: `${self}/rotate-secret`, method: 'POST' },
            recover: { href: `${self}/recover`, method: 'POST' },
          }
        : {}),
    },
  };
}

export function representAcknowledgement(acknowledged: Acknowledgement | null) {
  return acknowledged && { sequence: acknowledged.sequence, at: acknowledged.at.toISOString() };
}

export function representSecrets({ secret, previous }: Secrets): Record<string, unknown> {
  const isLive = previous !== null && previous.until.getTime() > Date.now();
  return {
    secret,
    previous_secret: isLive ? previous.secret : null,
    previous_secret_until: isLive ? previous.until.toISOString() : null,
  };
}
