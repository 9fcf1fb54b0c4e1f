/** `/admin/parked-events`: events that fan-out could not process; retrying one of them. */

import { actAs } from '../apps/actor.ts';
import { recordEntry } from '../audit/entry.ts';
import { readPage, sendPage } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import {
  isPosition,
  listParkedEvents,
  type ParkedEvent,
  retryParkedEvents,
} from '../webhooks/fan_out/parked_events.ts';
import { type AdminOptions, adminGuard } from './options.ts';

interface PositionRoute {
  Params: { position: string };
}

export function registerAdminParkedEvents(options: AdminOptions): void {
  const { api, db, events } = options;
  const admin = adminGuard(options);

  api.get('/admin/parked-events', async (request, reply) => {
    await admin(request);
    const page = readPage(request);
    if (page.after !== null && !isPosition(page.after)) throw page.invalid();
    const found = await listParkedEvents(db, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, represent, ({ position }) => position);
  });

  api.post<PositionRoute>('/admin/parked-events/:position/retry', async (request, reply) => {
    const actor = await admin(request);
    const { position } = request.params;
    if (!isPosition(position)) throw notFound();
    await db.transaction().execute(async (tx) => {
      await actAs(tx, actor);
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
