/** `/admin/rejected-events`: events that were published by SQL and failed validation; retrying and discarding them. */

import { actAs } from '../apps/actor.ts';
import { recordEntry } from '../audit/entry.ts';
import { isId } from '../crypto/ids.ts';
import { findRejected, listRejected, type RejectedEvent, takeRejected } from '../events/rejected_events.ts';
import { type Correction, retryRejected } from '../events/retry_rejected.ts';
import { isStorable } from '../http/json.ts';
import { readJsonObject } from '../http/json_object.ts';
import { readPage, sendPage } from '../http/page.ts';
import { bodyProblem, Problem, type ValidationError } from '../http/problem.ts';
import { type AdminOptions, adminGuard, type IdRoute } from './options.ts';

/** Maximum length of a corrected kind or account, in characters. */
const nameCharactersMax = 255;

export function registerAdminRejectedEvents(options: AdminOptions): void {
  const { api, db, events } = options;
  const admin = adminGuard(options);

  api.get('/admin/rejected-events', async (request, reply) => {
    await admin(request);
    const page = readPage(request);
    if (page.after !== null && !isId(page.after)) throw page.invalid();
    const found = await listRejected(db, page.limit + 1, page.after);
    return sendPage(request, reply, page, found, represent, ({ id }) => id);
  });

  api.get<IdRoute>('/admin/rejected-events/:id', async (request) => {
    await admin(request);
    const { id } = request.params;
    const found = isId(id) ? await findRejected(db, id) : undefined;
    if (found === undefined) throw notFound();
    return { ...represent(found), body_json: found.body };
  });

  api.post<IdRoute>('/admin/rejected-events/:id/retry', async (request, reply) => {
    const actor = await admin(request);
    const { id } = request.params;
    const correction = readCorrection(request.body);
    if (!isId(id)) throw notFound();
    const retried = await db.transaction().execute(async (tx) => {
      await actAs(tx, actor);
      const done = await retryRejected(tx, id, correction, events.catalogue);
      if (done === undefined) throw notFound();
      const details = { event: done.eventId, kind: done.kind, corrected: Object.keys(correction) };
      await recordEntry(tx, { kind: 'rejected_event.retried', details });
      return done;
    });
    events.onPublished(retried.stored);
    return reply.code(202).send({ id: retried.eventId });
  });

  api.delete<IdRoute>('/admin/rejected-events/:id', async (request, reply) => {
    const actor = await admin(request);
    const { id } = request.params;
    if (!isId(id)) throw notFound();
    await db.transaction().execute(async (tx) => {
      await actAs(tx, actor);
      const taken = await takeRejected(tx, id);
      if (taken === undefined) throw notFound();
      const details = { event: taken.eventId, kind: taken.kind };
      await recordEntry(tx, { kind: 'rejected_event.discarded', details });
    });
    return reply.code(204).send();
  });
}

/** @throws Problem 422 */
function readCorrection(body: unknown): Correction {
  if (body === undefined || body === null) return {};
  const errors: ValidationError[] = [];
  const given = readJsonObject(body, ['kind', 'account', 'body'], errors);
  const { kind, account, body: corrected } = given;
  for (const [name, value] of Object.entries({ kind, account })) {
    if (value !== undefined && !isName(value)) {
      errors.push({ pointer: `/${name}`, message: `must have 1 to ${nameCharactersMax} characters` });
    }
  }
  if (errors.length > 0) throw bodyProblem(errors.slice(0, 100));
  return {
    ...(kind === undefined ? {} : { kind: kind as string }),
    ...(account === undefined ? {} : { account: account as string }),
    ...(corrected === undefined ? {} : { body: JSON.stringify(corrected) }),
  };
}

function isName(value: unknown): boolean {
  return typeof value === 'string' && value !== '' && value.length <= nameCharactersMax && isStorable(value);
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
