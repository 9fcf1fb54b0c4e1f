/** Challenges the URL of a subscription before it is stored, outside any transaction (webhooks/sending/handshake.ts). */

import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { bodyProblem, Problem } from '../../http/problem.ts';
import { tenantName } from '../../shared/tenant.ts';
import type { Handshakes, HandshakeTarget } from '../../webhooks/sending/handshake.ts';
import { headerLines, maskedValue } from '../../webhooks/subscriptions/static_headers.ts';
import type { SubscriberAuth } from '../../webhooks/subscriptions/subscriber_auth.ts';
import type { Owner, Subscription, SubscriptionFields } from '../../webhooks/subscriptions/subscription.ts';
import { readSentValues } from '../../webhooks/subscriptions/subscription_secrets.ts';
import type { NewSubscription, PatchedSubscription } from './subscription_body.ts';

export interface HandshakeRules {
  db: Database;
  sealer: Sealer;
  handshakes: Handshakes;
}

/** @param secret with which the challenge is signed @throws Problem 422, 429 */
export async function challengeNew(
  rules: HandshakeRules,
  owner: Owner,
  fields: SubscriptionFields,
  { headers, auth }: NewSubscription,
  secret: string,
): Promise<void> {
  const { url, signature, handshake } = fields;
  if (url === null || !(handshake || rules.handshakes.isRequired)) return;
  const lines = headerLines((headers ?? {}) as Record<string, string>);
  const target = {
    url,
    signature,
    secret,
    headerLines: lines,
    auth: (auth ?? null) as SubscriberAuth | null,
  };
  await challenge(rules, owner, target);
}

/** Whether a change must be preceded by a handshake with the new URL. */
export function needsChallenge(
  { handshakes }: Pick<HandshakeRules, 'handshakes'>,
  current: Subscription,
  patched: SubscriptionFields,
): boolean {
  if (patched.url === null || !(patched.handshake || handshakes.isRequired)) return false;
  return patched.url !== current.url || (patched.handshake && !current.handshake);
}

/**
 * @returns the URL that echoed; null if none is needed
 * @throws Problem 422, 429
 */
export async function challengeChange(
  rules: HandshakeRules,
  owner: Owner,
  current: Subscription,
  patched: PatchedSubscription,
): Promise<string | null> {
  const { url, signature } = patched;
  if (url === null || !needsChallenge(rules, current, patched)) return null;
  const stored = await readSentValues(rules.db, owner, current.id, rules.sealer);
  // The subscription has ended, which the transaction finds out.
  if (stored === undefined) return null;
  // What is stored is not sent to another origin.
  const isSameOrigin = current.url !== null && new URL(current.url).origin === new URL(url).origin;
  const kept = isSameOrigin && patched.headers !== null ? stored.headers : {};
  const given = Object.entries({ ...kept, ...patched.headers }).filter(
    (entry): entry is [string, string] => entry[1] !== null && entry[1] !== maskedValue,
  );
  const auth = patched.auth === undefined ? (isSameOrigin ? stored.auth : null) : patched.auth;
  await challenge(rules, owner, {
    url,
    signature,
    secret: stored.secret,
    headerLines: headerLines(Object.fromEntries(given)),
    auth: auth as SubscriberAuth | null,
  });
  return url;
}

async function challenge(
  { handshakes }: HandshakeRules,
  owner: Owner,
  target: HandshakeTarget,
): Promise<void> {
  const { kind } = owner;
  const whose = [kind, kind === 'client' ? '' : owner.accountId, kind === 'user' ? '' : owner.clientId];
  const app = kind === 'user' ? owner.accountId : owner.clientId;
  const account =
    kind === 'client'
      ? tenantName({ accountId: null, creatorId: owner.creatorId, clientId: owner.clientId })
      : owner.accountId;
  const asks = { key: whose.join(' '), app, account };
  const failure = await waitElsewhere(() => handshakes.perform(asks, target));
  if (failure === null) return;
  if ('reason' in failure) {
    const message = `did not echo the challenge: ${failure.reason}`;
    throw bodyProblem([{ pointer: '/url', message, code: 'handshake-failed' }]);
  }
  const headers = { 'retry-after': String(failure.retryAfterSeconds) };
  if (failure.isOverloaded === true)
    throw new Problem(503, 'Other requests to servers take too long. Try again.', {
      code: 'overloaded',
      headers,
    });
  throw new Problem(429, 'Too many handshakes.', { code: 'rate-limited', headers });
}
