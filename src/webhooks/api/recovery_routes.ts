/**
 * Recoveries: `POST /subscriptions/<id>/recover` starts one. Its own URL shows its progress, and DELETE cancels it.
 */

import type { FastifyInstance } from 'fastify';
import { isId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import type { Guard } from '../../grants/principal.ts';
import { bodyProblem, Problem, type ValidationError } from '../../http/problem.ts';
import { readTime } from '../../http/time.ts';
import {
  cancelRecovery,
  findRecovery,
  type RecoverableState,
  type Recovery,
  recoverableStates,
  runningMax,
  startRecovery,
} from '../fan_out/recovery.ts';
import { errorsMax } from '../subscriptions/subscription_body.ts';
import { sendIdempotentForOwner } from './idempotency.ts';
import { ownerOf, requireOwnSubscription, requireSubscription } from './subscription_routes.ts';

interface JobRoute {
  Params: { id: string; job: string };
}

export interface RecoveryRoutesOptions {
  api: FastifyInstance;
  db: Database;
  guard: Guard;
  sealer: Sealer;
  /** Called when there is a new job. */
  wake: () => void;
}

export function registerRecoveries(options: RecoveryRoutesOptions): void {
  const { api, db, guard, wake } = options;
  api.post<{ Params: { id: string } }>('/subscriptions/:id/recover', async (request, reply) => {
    const owner = ownerOf(await guard(request, 'write:webhooks'), 'write');
    const range = readRange(request.body);
    await sendIdempotentForOwner(options, request, reply, owner, async (tx) => {
      const { id, lane, state } = await requireOwnSubscription(tx, owner, request.params.id);
      if (state !== 'active') {
        throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
      }
      const recovery = await startRecovery(tx, lane, range);
      if (recovery === undefined) {
        throw new Problem(
          409,
          `${runningMax} recoveries of this subscription are running. Wait for one to finish, or cancel it.`,
          {
            code: 'too-many-recoveries',
          },
        );
      }
      const headers = { location: `/subscriptions/${id}/recoveries/${recovery.id}` };
      return { status: 202, headers, body: JSON.stringify(represent(id, recovery)) };
    });
    wake();
    return reply;
  });

  api.get<JobRoute>('/subscriptions/:id/recoveries/:job', async (request) => {
    const owner = ownerOf(await guard(request, 'read:webhooks'), 'read');
    const { id, lane } = await requireSubscription(db, owner, request.params.id);
    const { job } = request.params;
    const recovery = isId(job) ? await findRecovery(db, lane, job) : undefined;
    if (recovery === undefined) throw new Problem(404, 'Recovery not found.');
    return represent(id, recovery);
  });

  api.delete<JobRoute>('/subscriptions/:id/recoveries/:job', async (request, reply) => {
    const owner = ownerOf(await guard(request, 'write:webhooks'), 'write');
    const { lane } = await requireOwnSubscription(db, owner, request.params.id);
    const { job } = request.params;
    if (!isId(job) || (await findRecovery(db, lane, job)) === undefined) {
      throw new Problem(404, 'Recovery not found.');
    }
    await cancelRecovery(db, lane, job);
    return reply.code(204).send();
  });
}

function readRange(body: unknown): { since: Date; until: Date | null; states: RecoverableState[] } {
  const errors: ValidationError[] = [];
  const given = typeof body === 'object' && body !== null && !Array.isArray(body) ? body : undefined;
  if (given === undefined) throw bodyProblem([{ pointer: '', message: 'must be an object' }]);
  const { since, until, status, ...others } = given as Record<string, unknown>;
  for (const name of Object.keys(others))
    errors.push({ pointer: `/${name}`, message: 'is not a known property' });
  const from = readTime(since);
  const to = until === undefined ? null : readTime(until);
  if (from === undefined) errors.push({ pointer: '/since', message: 'must be an RFC 3339 time' });
  if (to === undefined) errors.push({ pointer: '/until', message: 'must be an RFC 3339 time' });
  const states = status === undefined ? ['failed', 'held', 'missing'] : [status].flat();
  if (
    states.length === 0 ||
    !states.every((state) => recoverableStates.includes(state as RecoverableState))
  ) {
    errors.push({
      pointer: '/status',
      message: `must be one of ${recoverableStates.join(', ')}, or an array of these`,
    });
  }
  if (errors.length > 0) throw bodyProblem(errors.slice(0, errorsMax));
  return {
    since: from as Date,
    until: to as Date | null,
    states: [...new Set(states as RecoverableState[])],
  };
}

function represent(subscriptionId: string, recovery: Recovery): Record<string, unknown> {
  return {
    id: recovery.id,
    subscription: subscriptionId,
    since: recovery.since.toISOString(),
    until: recovery.until.toISOString(),
    status: recovery.states,
    state: recovery.state,
    resent: recovery.resent,
    added: recovery.added,
    created_at: recovery.createdAt.toISOString(),
    _links: { self: { href: `/subscriptions/${subscriptionId}/recoveries/${recovery.id}` } },
  };
}
