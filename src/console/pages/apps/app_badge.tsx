/** Whether the app is verified. */

import { Badge, type BadgeLook } from '../../ui/badge.tsx';

const looks: Readonly<Record<string, BadgeLook>> = {
  verified: 'good',
  suspended: 'bad',
  unverified: 'still',
};

export function AppBadge({ state }: { state: string }) {
  return <Badge look={looks[state] ?? 'still'}>{state}</Badge>;
}
