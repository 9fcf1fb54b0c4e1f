/** A state in a word, told apart by more than its colour. */

import type { ReactNode } from 'react';

export type BadgeLook = 'good' | 'warn' | 'bad' | 'info' | 'still';

export function Badge({ look = 'still', children }: { look?: BadgeLook; children: ReactNode }) {
  return <span className={`badge badge-${look}`}>{children}</span>;
}

const deliveryLooks: Readonly<Record<string, BadgeLook>> = {
  pending: 'info',
  held: 'warn',
  succeeded: 'good',
  failed: 'bad',
  cancelled: 'still',
};

export function DeliveryBadge({ state }: { state: string }) {
  return <Badge look={deliveryLooks[state] ?? 'still'}>{state}</Badge>;
}
