/** The state of a delivery, with the last response of one that is retried or has failed. */

import type { Delivery } from '../../api/generated.ts';
import { Badge, type BadgeLook, capitalize } from '../../ui/badge.tsx';
import { Until } from '../../ui/time.tsx';

const looks: Readonly<Record<string, BadgeLook>> = {
  pending: 'info',
  held: 'warn',
  succeeded: 'good',
  failed: 'bad',
  cancelled: 'still',
};

type Shown = Pick<Delivery, 'state' | 'attempt_count' | 'last_status' | 'last_error' | 'next_attempt_at'>;

export function DeliveryBadge({ delivery }: { delivery: Shown }) {
  const { state, next_attempt_at: next } = delivery;
  const result = nameResult(delivery.last_status, delivery.last_error);
  if (isRetrying(delivery)) {
    return (
      <Badge look="warn">
        <span>
          Retrying · {result}
          {next !== null && (
            <>
              {' '}
              · next <Until time={next} />
            </>
          )}
        </span>
      </Badge>
    );
  }
  const text = state === 'failed' && result !== '' ? `${state} · ${result}` : state;
  return <Badge look={looks[state] ?? 'still'}>{capitalize(text)}</Badge>;
}

/** Whether the delivery waits for another attempt after a failed one. */
export function isRetrying({
  state,
  attempt_count: attempts,
}: Pick<Delivery, 'state' | 'attempt_count'>): boolean {
  return state === 'pending' && attempts > 0;
}

/** The status of a response, or the error of an attempt without one. */
export function nameResult(status: number | null, error: string | null): string {
  return status === null ? (error ?? '').replaceAll('_', ' ') : String(status);
}
