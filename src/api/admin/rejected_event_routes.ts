/** `/admin/rejected-events`: events that were published by SQL and failed validation; retrying and discarding them. */

import Type from 'typebox';
import { recordEntry } from '../../audit/entry.ts';
import { isId } from '../../crypto/ids.ts';
import {
  findRejected,
  listRejected,
  type RejectedEvent,
  takeRejected,
} from '../../events/rejected_events.ts';
import { type Correction, retryRejected } from '../../events/retry_rejected.ts';
import { actAs } from '../../grants/actor.ts';
import { idParameter, jsonBody, links } from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, named, strict, Time } from '../../http/schema.ts';
import { route, serve } from '../route.ts';
import { type AdminOptions, administration, listRoute, readRoute } from './options.ts';

/** Without `body_json`, the body as PostgreSQL formats it, which only the response for a single event contains. */
const members = {
  id: Id(),
  event: Type.String(),
  kind: Type.String(),
  account: Type.String(),
  reason: Type.String(),
  errors: Type.Array(
    Type.Object(
      { pointer: Type.String(), message: Type.String(), code: Type.Optional(Type.String()) },
      strict,
    ),
  ),
  published_at: Time(),
  rejected_at: Time(),
  _links: links,
};
const Rejected = named('RejectedEvent', Type.Object(members, strict));
const RejectedWithBody = named(
  'RejectedEventWithBody',
  Type.Object({ ...members, body_json: Type.String() }, strict),
);
const Name = () => Type.Optional(Type.String({ minLength: 1, maxLength: 255 }));
const CorrectionBody = named(
  'RejectedEventCorrection',
  Type.Object({ kind: Name(), account: Name(), body: Type.Optional(Type.Unknown()) }, strict),
);
const RetriedEvent = named('RetriedEvent', Type.Object({ id: Type.String() }, strict));
const id = idParameter('rejected event');

export const rejectedEventRoutes = {
  list: listRoute(
    'list_rejected_events',
    '/admin/rejected-events',
    'List rejected events, newest first',
    Rejected,
    [],
    'Events that were published by SQL and failed validation.',
  ),
  read: readRoute(
    'read_rejected_event',
    '/admin/rejected-events/{id}',
    'Read a rejected event with its body',
    RejectedWithBody,
    [id],
  ),
  retry: route({
    ...administration,
    id: 'retry_rejected_event',
    method: 'post',
    path: '/admin/rejected-events/{id}/retry',
    summary: 'Retry a rejected event',
    description:
      '`kind`, `account` and `body` replace the published values. If the event fails validation again, it stays rejected and the response is 422.',
    parameters: [id],
    body: jsonBody(
      CorrectionBody,
      { body: { invoice: { id: 'inv_1024', amount: 4_900, currency: 'EUR' } } },
      false,
    ),
    responses: { 202: { description: 'Accepted as an event.', schema: RetriedEvent } },
  }),
  discard: route({
    ...administration,
    id: 'discard_rejected_event',
    method: 'delete',
    path: '/admin/rejected-events/{id}',
    summary: 'Discard a rejected event',
    parameters: [id],
    responses: { 204: { description: 'Discarded.' } },
  }),
};

export function registerAdminRejectedEvents(options: AdminOptions): void {
  const { db, events } = options;

  serve(options, rejectedEventRoutes.list, async ({ request, reply }) => {
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listRejected(db, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, represent, ({ id }) => id);
  });

  serve(options, rejectedEventRoutes.read, async ({ params: { id } }) => {
    const found = isId(id) ? await findRejected(db, id) : undefined;
    if (found === undefined) throw notFound();
    return { ...represent(found), body_json: found.body };
  });

  serve(
    options,
    rejectedEventRoutes.retry,
    async ({ reply, caller, params: { id }, body: { body, ...names } }) => {
      const correction: Correction = {
        ...names,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      };
      if (!isId(id)) throw notFound();
      const retried = await db.transaction().execute(async (tx) => {
        await actAs(tx, caller);
        const done = await retryRejected(tx, id, correction, events.catalogue);
        if (done === undefined) throw notFound();
        const details = { event: done.eventId, kind: done.kind, corrected: Object.keys(correction) };
        await recordEntry(tx, { kind: 'rejected_event.retried', details });
        return done;
      });
      events.onPublished(retried.stored);
      return reply.code(202).send({ id: retried.eventId });
    },
  );

  serve(options, rejectedEventRoutes.discard, async ({ reply, caller, params: { id } }) => {
    if (!isId(id)) throw notFound();
    await db.transaction().execute(async (tx) => {
      await actAs(tx, caller);
      const taken = await takeRejected(tx, id);
      if (taken === undefined) throw notFound();
      const details = { event: taken.eventId, kind: taken.kind };
      await recordEntry(tx, { kind: 'rejected_event.discarded', details });
    });
    return reply.code(204).send();
  });
}

function notFound(): Problem {
  return new Problem(404, 'Rejected event not found.');
}

function represent(event: RejectedEvent): Record<string, unknown> {
  const href = `/admin/rejected-events/${event.id}`;
  return {
    id: event.id,
    event: event.eventId,
    kind: event.kind,
    account: event.account,
    reason: event.reason,
    errors: event.errors,
    published_at: event.publishedAt.toISOString(),
    rejected_at: event.rejectedAt.toISOString(),
    _links: { self: { href }, retry: { href: `${href}/retry`, method: 'POST' } },
  };
}
