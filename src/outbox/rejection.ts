/** What a failed publication means: which events the server rejects, or that it may work later. */

import type { WaitingEvent } from './store.ts';

export interface Rejection {
  event: WaitingEvent;
  reason: string;
}

export type Verdict =
  /** The server rejects these events. The others of the batch were not taken either. */
  | { kind: 'rejected'; rejections: Rejection[] }
  /** The server rejects the batch, and does not say because of which event. */
  | { kind: 'divide' }
  /** It may work later. */
  | { kind: 'failed' };

/** Characters of a reason that are kept. */
const reasonCharactersMax = 1_000;

/** The members of a `PublishError` of `nuncio/protect`, all of which may be missing. */
interface Failure {
  status?: unknown;
  problem?: unknown;
  events?: unknown;
  message?: unknown;
}

/** @param batch the events that were published, in order */
export function judge(error: unknown, batch: readonly WaitingEvent[]): Verdict {
  const failure = (typeof error === 'object' && error !== null ? error : {}) as Failure;
  const faults = faultsOf(failure);
  // A 422 that is not the server's own says nothing of the events. A 413 may be that of a proxy, with a limit of its own.
  // A RangeError is a body that is nested too deep to be written: it fails each time.
  const isUnwritable = error instanceof RangeError;
  if (!isUnwritable && failure.status !== 413 && (failure.status !== 422 || faults === undefined)) {
    return { kind: 'failed' };
  }
  const rejections = locate(faults ?? [], failure.events, batch);
  if (rejections.length > 0) return { kind: 'rejected', rejections };
  const [event, ...others] = batch;
  if (event === undefined || others.length > 0) return { kind: 'divide' };
  const reason = toReason(faults?.[0]?.message ?? failure.message);
  return { kind: 'rejected', rejections: [{ event, reason }] };
}

interface Fault {
  pointer: string;
  message: string;
}

/** @returns undefined where the response had no problem details with `errors` (RFC 9457) */
function faultsOf({ problem }: Failure): Fault[] | undefined {
  const { errors } = (typeof problem === 'object' && problem !== null ? problem : {}) as { errors?: unknown };
  if (!Array.isArray(errors)) return undefined;
  return errors.flatMap((each: unknown) => {
    const { pointer, message } = (each ?? {}) as { pointer?: unknown; message?: unknown };
    return typeof pointer === 'string' ? [{ pointer, message: String(message) }] : [];
  });
}

/** @param sent the events of the request that failed, as the error tells: a publisher may divide a batch */
function locate(faults: readonly Fault[], sent: unknown, batch: readonly WaitingEvent[]): Rejection[] {
  const ids = Array.isArray(sent)
    ? sent.map((each) => (each as { id?: unknown } | null)?.id)
    : batch.map(({ id }) => id);
  const events = new Map<unknown, WaitingEvent>(batch.map((event) => [event.id, event]));
  const rejections = new Map<WaitingEvent, Rejection>();
  for (const { pointer, message } of faults) {
    const [, index = '', rest = ''] = /^\/(\d+)(.*)$/s.exec(pointer) ?? [];
    const event = index === '' ? undefined : events.get(ids[Number(index)]);
    if (event === undefined || rejections.has(event)) continue;
    rejections.set(event, { event, reason: toReason(`${rest || 'the event'} ${message}`) });
  }
  return [...rejections.values()];
}

/** A text that every database stores. */
function toReason(value: unknown): string {
  return String(value)
    .slice(0, reasonCharactersMax)
    .replaceAll(/\p{Cc}|\p{Cs}/gu, ' ');
}
