/** The empty state of subscriptions, with a link to create one. */

import type { LucideIcon } from 'lucide-react';
import { Plus } from 'lucide-react';
import type { ReactNode } from 'react';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/states.tsx';

export const newSubscriptionLink = (
  <ButtonLink look="primary" to="/subscriptions/new">
    <Plus size={16} aria-hidden /> New subscription
  </ButtonLink>
);

export function NoSubscriptionsYet({ icon, children }: { icon: LucideIcon; children: ReactNode }) {
  return (
    <Empty icon={icon} title="No subscriptions yet" action={newSubscriptionLink}>
      {children}
    </Empty>
  );
}
