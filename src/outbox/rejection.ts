/** Classifies failed requests: either the server rejects certain events, or the request can be retried. */

import type { WaitingEvent } from './store.ts';

export interface Rejection {
  event: WaitingEvent;
  reason: string;
}

export type PublishFailure =
  /** The server rejects these events. It has not stored the others of the batch either. */
  | { kind: 'rejected'; rejections: Rejection[] }
  /** The server rejects the batch and does not name an event. */
  | { kind: 'split' }
  /** The request can be retried. */
  | { kind: 'failed' };

/** Maximum length of a stored reason. */
const reasonCharactersMax = 1_000;

/** The members of a `PublishError` of `nuncio/protect`. Other publishers can throw errors without them. */
interface ErrorDetails {
  status?: unknown;
  problem?: unknown;
  events?: unknown;
  message?: unknown;
}

/** @param batch the events that the publisher received, in order */
export function classifyFailure(error: unknown, batch: readonly WaitingEvent[]): PublishFailure {
  const details = (typeof error === 'object' && error !== null ? error : {}) as ErrorDetails;
  const errors = errorsOf(details);
  // A 422 without `errors` comes from something other than the Nuncio server, and does not reject the events.
  // A 413 can come from a proxy with a lower limit, so a smaller request can succeed.
  // A RangeError means that a body is nested too deeply to be serialized. It fails on every retry.
  const isUnserializable = error instanceof RangeError;
  if (!isUnserializable && details.status !== 413 && (details.status !== 422 || errors === undefined)) {
    return { kind: 'failed' };
  }
  const rejections = locate(errors ?? [], details.events, batch);
  if (rejections.length > 0) return { kind: 'rejected', rejections };
  const [event, ...others] = batch;
  if (event === undefined || others.length > 0) return { kind: 'split' };
  const reason = toReason(errors?.[0]?.message ?? details.message);
  return { kind: 'rejected', rejections: [{ event, reason }] };
}

interface ReportedError {
  pointer: string;
  message: string;
}

/** @returns undefined if the response has no problem details with `errors` (RFC 9457) */
function errorsOf({ problem }: ErrorDetails): ReportedError[] | undefined {
  const { errors } = (typeof problem === 'object' && problem !== null ? problem : {}) as { errors?: unknown };
  if (!Array.isArray(errors)) return undefined;
  return errors.flatMap((each: unknown) => {
    const { pointer, message } = (each ?? {}) as { pointer?: unknown; message?: unknown };
    return typeof pointer === 'string' ? [{ pointer, message: String(message) }] : [];
  });
}

/** @param sent the events of the failed request, from the error: a publisher can split a batch into several requests */
function locate(
  errors: readonly ReportedError[],
  sent: unknown,
  batch: readonly WaitingEvent[],
): Rejection[] {
  const ids = Array.isArray(sent)
    ? sent.map((each) => (each as { id?: unknown } | null)?.id)
    : batch.map(({ id }) => id);
  const events = new Map<unknown, WaitingEvent>(batch.map((event) => [event.id, event]));
  const rejections = new Map<WaitingEvent, Rejection>();
  for (const { pointer, message } of errors) {
    const [, index = '', rest = ''] = /^\/(\d+)(.*)$/s.exec(pointer) ?? [];
    const event = index === '' ? undefined : events.get(ids[Number(index)]);
    if (event === undefined || rejections.has(event)) continue;
    rejections.set(event, { event, reason: toReason(`${rest || 'the event'} ${message}`) });
  }
  return [...rejections.values()];
}

/** Truncates a reason and replaces characters that some databases do not store. */
function toReason(value: unknown): string {
  return String(value)
    .slice(0, reasonCharactersMax)
    .replaceAll(/\p{Cc}|\p{Cs}/gu, ' ');
}
