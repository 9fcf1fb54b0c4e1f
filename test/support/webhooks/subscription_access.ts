/** Which operations on a subscription a token permits. Tests compare the status of each. */

import type { Request } from './apps.ts';

/** Tries every operation on a subscription and one of its deliveries. @returns the status of each */
export async function accessStatuses(
  request: Request,
  id: string,
  delivery: string,
): Promise<Record<string, number>> {
  const asked: Record<string, [method: string, path: string, json?: unknown]> = {
    read: ['GET', `/subscriptions/${id}`],
    log: ['GET', `/subscriptions/${id}/deliveries`],
    delivery: ['GET', `/deliveries/${delivery}`],
    resend: ['POST', `/deliveries/${delivery}/resend`],
    test: ['POST', `/subscriptions/${id}/test`],
    secret: ['GET', `/subscriptions/${id}/secret`],
    rotate: ['POST', `/subscriptions/${id}/rotate-secret`, {}],
    change: ['PATCH', `/subscriptions/${id}`, { description: 'changed' }],
    recover: ['POST', `/subscriptions/${id}/recover`, { since: '2026-01-01T00:00:00Z' }],
    end: ['DELETE', `/subscriptions/${id}`],
  };
  const found: Record<string, number> = {};
  for (const [what, [method, path, json]] of Object.entries(asked)) {
    found[what] = (await request(method, path, json === undefined ? {} : { json })).status;
  }
  return found;
}

/** The token cannot see the subscription: every operation returns 404. */
export const noAccess = {
  ...{ read: 404, log: 404, delivery: 404, resend: 404, test: 404 },
  ...{ secret: 404, rotate: 404, change: 404, recover: 404, end: 404 },
};
/** Every operation succeeds. */
export const fullAccess = {
  ...{ read: 200, log: 200, delivery: 200, resend: 202, test: 202 },
  ...{ secret: 200, rotate: 200, change: 200, recover: 202, end: 204 },
};
