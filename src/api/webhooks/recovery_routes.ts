/**
 * Recoveries: `POST /subscriptions/<id>/recover` starts one. Its own URL shows its progress, and DELETE cancels it.
 */

import Type from 'typebox';
import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import {
  createdHeaders,
  idParameter,
  jsonBody,
  keyParameter,
  links,
  ok,
  pathParameter,
} from '../../http/describe.ts';
import { Problem } from '../../http/problem.ts';
import { Id, named, StringEnum, strict, Time, worded } from '../../http/schema.ts';
import { readTime } from '../../http/time.ts';
import {
  cancelRecovery,
  findRecovery,
  type RecoverableState,
  type Recovery,
  recoverableStates,
  runningMax,
  startRecovery,
} from '../../webhooks/fan_out/recovery.ts';
import { route, serve } from '../route.ts';
import { sendIdempotentForOwner } from './idempotency.ts';
import { reader, writer } from './owner_admission.ts';
import {
  requireOwnSubscription,
  requireSubscription,
  type WebhookRoutesOptions,
} from './subscription_access.ts';

const RecoveryStart = named(
  'RecoveryStart',
  Type.Object(
    {
      since: Time(),
      until: Type.Optional(Time()),
      status: Type.Optional(
        worded(
          `one of ${recoverableStates.join(', ')}, or an array of these`,
          Type.Union([
            StringEnum(...recoverableStates),
            Type.Array(StringEnum(...recoverableStates), { minItems: 1 }),
          ]),
        ),
      ),
    },
    strict,
  ),
);

const RecoveryShown = named(
  'Recovery',
  Type.Object(
    {
      id: Id(),
      subscription: Id(),
      since: Time(),
      until: Time(),
      status: Type.Array(StringEnum(...recoverableStates)),
      state: StringEnum('running', 'done', 'cancelled'),
      resent: Type.Integer({ minimum: 0 }),
      added: Type.Integer({ minimum: 0 }),
      created_at: Time(),
      _links: links,
    },
    strict,
  ),
);

const tag = 'deliveries';
const id = idParameter('subscription');
const job = pathParameter('job', 'The recovery.', Id());

export const recoveryRoutes = {
  start: route({
    id: 'start_recovery',
    method: 'post',
    path: '/subscriptions/{id}/recover',
    tag,
    summary: 'Recover the deliveries of a time range',
    description: `Resends failed and held deliveries, and delivers events from before the subscription was created. At most ${runningMax} recoveries of a subscription run at once.`,
    admission: writer,
    parameters: [id, keyParameter],
    body: jsonBody(RecoveryStart, { since: '2026-07-01T00:00:00Z', status: ['failed', 'held'] }),
    responses: { 202: { description: 'It has begun.', schema: RecoveryShown, headers: createdHeaders } },
    problems: [409],
  }),
  read: route({
    id: 'read_recovery',
    method: 'get',
    path: '/subscriptions/{id}/recoveries/{job}',
    tag,
    summary: 'Read a recovery',
    description: 'Shows the progress of a recovery.',
    admission: reader,
    parameters: [id, job],
    responses: ok('The recovery.', RecoveryShown),
  }),
  cancel: route({
    id: 'cancel_recovery',
    method: 'delete',
    path: '/subscriptions/{id}/recoveries/{job}',
    tag,
    summary: 'Cancel a recovery',
    description: 'Deliveries that are already due are still sent.',
    admission: writer,
    parameters: [id, job],
    responses: { 204: { description: 'The recovery is cancelled.' } },
    problems: [409],
  }),
};

/** @param wake called when there is a new recovery */
export function registerRecoveries(options: WebhookRoutesOptions, wake: () => void): void {
  const { db } = options;

  serve(options, recoveryRoutes.start, async ({ request, reply, caller: owner, params, body }) => {
    const { since, until, status = ['failed', 'held', 'missing'] } = body;
    const range = {
      since: readTime(since) as Date,
      until: until === undefined ? null : (readTime(until) as Date),
      states: [...new Set([status].flat())] as RecoverableState[],
    };
    await sendIdempotentForOwner(options, request, reply, owner, async (tx) => {
      const { id, lane, state, url } = await requireOwnSubscription(tx, owner, params.id);
      if (state !== 'active') {
        throw new Problem(409, 'The subscription is disabled.', { code: 'subscription-disabled' });
      }
      // What was pulled before can be pulled again.
      const states = url === null ? range.states.filter((each) => each === 'missing') : range.states;
      if (states.length === 0) {
        throw new Problem(409, 'The subscription has no URL. Only what is missing can be recovered.', {
          code: 'pull-only',
        });
      }
      const recovery = await startRecovery(tx, lane, { ...range, states });
      if (recovery === undefined) {
        throw new Problem(
          409,
          `${runningMax} recoveries of this subscription are running. Wait for one to finish, or cancel it.`,
          { code: 'too-many-recoveries' },
        );
      }
      const headers = { location: `/subscriptions/${id}/recoveries/${recovery.id}` };
      return { status: 202, headers, body: JSON.stringify(represent(id, recovery)) };
    });
    wake();
    return reply;
  });

  serve(options, recoveryRoutes.read, async ({ caller: owner, params }) => {
    const { id, lane } = await requireSubscription(db, owner, params.id);
    return represent(id, await requireRecovery(db, lane, params.job));
  });

  serve(options, recoveryRoutes.cancel, async ({ reply, caller: owner, params }) => {
    const { lane } = await requireOwnSubscription(db, owner, params.id);
    const { id } = await requireRecovery(db, lane, params.job);
    await cancelRecovery(db, lane, id);
    return reply.code(204).send();
  });
}

/** @throws Problem 404 */
async function requireRecovery(db: Database, lane: number, id: string): Promise<Recovery> {
  const recovery = isId(id) ? await findRecovery(db, lane, id) : undefined;
  if (recovery === undefined) throw new Problem(404, 'Recovery not found.');
  return recovery;
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
