/** The state of a subscription. */

import type { Subscription } from '../../api/generated.ts';
import { Badge } from '../../ui/badge.tsx';

export function SubscriptionBadge({
  subscription,
}: {
  subscription: Pick<Subscription, 'state' | 'failing_since'>;
}) {
  if (subscription.state === 'disabled') return <Badge look="still">paused</Badge>;
  if (subscription.failing_since !== null) return <Badge look="bad">failing</Badge>;
  return <Badge look="good">active</Badge>;
}

const reasons: Readonly<Record<string, string>> = {
  owner: 'It was paused in the console or through the API.',
  failing: 'Its deliveries failed for five days.',
  gone: 'The URL responded with 410 Gone.',
  password_reset:
    'The operator of this server reset your password. Check that the URL is yours before you resume it.',
  operator: 'The operator of this server disabled it.',
};

export function explainDisabled(reason: string | null | undefined): string {
  return reasons[reason ?? ''] ?? `It is disabled (${reason ?? 'no reason given'}).`;
}
