/** `/admin/parked-events`: events that fan-out could not process; retrying one of them. */

import Type from 'typebox';
import { recordEntry } from '../../audit/entry.ts';
import { actAs } from '../../grants/actor.ts';
import { links, pathParameter } from '../../http/describe.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, strict, Time } from '../../http/schema.ts';
import {
  isPosition,
  listParkedEvents,
  type ParkedEvent,
  retryParkedEvents,
} from '../../webhooks/fan_out/parked_events.ts';
import { route, serve } from '../route.ts';
import { type AdminOptions, administration, listRoute } from './options.ts';

/** The position of an event, in decimal digits. It is a text, because it may exceed what a JSON number holds exactly. */
const Position = () => Type.String({ minLength: 1, maxLength: 18 });

const Parked = named(
  'ParkedEvent',
  Type.Object(
    {
      position: Position(),
      // Null if the event no longer exists.
      event: Nullable(Type.String()),
      kind: Nullable(Type.String()),
      account: Nullable(Id()),
      reason: Type.String({ maxLength: 500 }),
      parked_at: Time(),
      _links: links,
    },
    strict,
  ),
);
const Retried = named('RetriedParkedEvent', Type.Object({ position: Position() }, strict));

export const parkedEventRoutes = {
  list: listRoute(
    'list_parked_events',
    '/admin/parked-events',
    'List parked events, oldest first',
    Parked,
    [],
    'Events that fan-out could not turn into deliveries, with the reason. Their account’s later events continue.',
  ),
  retry: route({
    ...administration,
    id: 'retry_parked_event',
    method: 'post',
    path: '/admin/parked-events/{position}/retry',
    summary: 'Retry a parked event',
    description:
      'Returns the event to the outbox, behind the events that its account has waiting. If it fails again, it is parked again.',
    parameters: [pathParameter('position', 'The position of the parked event.', Position())],
    responses: { 202: { description: 'Returned to the outbox.', schema: Retried } },
    problems: [413, 415],
  }),
};

export function registerAdminParkedEvents(options: AdminOptions): void {
  const { db, events } = options;

  serve(options, parkedEventRoutes.list, async ({ request, reply }) => {
    const page = readPage(request);
    if (page.after !== null && !isPosition(page.after)) throw page.invalid();
    const found = await listParkedEvents(db, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, represent, ({ position }) => position);
  });

  serve(options, parkedEventRoutes.retry, async ({ reply, caller, params: { position } }) => {
    if (!isPosition(position)) throw notFound();
    await db.transaction().execute(async (tx) => {
      await actAs(tx, caller);
      // Deletes the row, so one of several concurrent requests returns the event to the outbox.
      if ((await retryParkedEvents(tx, position)) === 0) throw notFound();
      await recordEntry(tx, { kind: 'parked_event.retried', details: { position } });
    });
    events.onPublished([]);
    return reply.code(202).send({ position });
  });
}

function notFound(): Problem {
  return new Problem(404, 'Parked event not found.');
}

function represent(event: ParkedEvent): Record<string, unknown> {
  const href = `/admin/parked-events/${event.position}/retry`;
  return {
    position: event.position,
    event: event.id,
    kind: event.kind,
    account: event.accountId,
    reason: event.reason,
    parked_at: event.parkedAt.toISOString(),
    _links: { retry: { href, method: 'POST' } },
  };
}
