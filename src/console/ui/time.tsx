/** Readable times. The title has the exact time. */

import { useSyncExternalStore } from 'react';

const relative = new Intl.RelativeTimeFormat('en', { numeric: 'auto', style: 'narrow' });
const minute = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'short' });
const exact = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'medium' });

const units: readonly [unit: Intl.RelativeTimeFormatUnit, seconds: number][] = [
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
];

function formatAgo(time: string, now: number): string {
  const seconds = Math.round((Date.parse(time) - now) / 1_000);
  const [unit, length] = units.find(([, size]) => Math.abs(seconds) >= size) ?? ['second', 1];
  return relative.format(Math.trunc(seconds / length), unit);
}

export function formatExact(time: string): string {
  return exact.format(new Date(time));
}

/** For sentences: without seconds. */
export function formatMinute(time: string): string {
  return minute.format(new Date(time));
}

let tick = 0;
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

/** One clock for the whole page. */
function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    tick += 1;
    for (const each of listeners) each();
  }, 1_000);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

export function Ago({ time }: { time: string }) {
  useSyncExternalStore(subscribe, () => tick);
  return (
    <time dateTime={time} title={formatExact(time)} className="nowrap">
      {formatAgo(time, Date.now())}
    </time>
  );
}

/** How long it is until a time: `in 2 min`, or `now`. */
export function Until({ time }: { time: string }) {
  useSyncExternalStore(subscribe, () => tick);
  return (
    <time dateTime={time} title={formatExact(time)} className="nowrap">
      {formatUntil(time, Date.now())}
    </time>
  );
}

function formatUntil(time: string, now: number): string {
  const seconds = Math.round((Date.parse(time) - now) / 1_000);
  if (seconds < 1) return 'now';
  const [name, length] = shortUnits.find(([, size]) => seconds >= size) ?? ['s', 1];
  return `in ${Math.round(seconds / length)} ${name}`;
}

const shortUnits = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
] as const;

export function formatMs(ms: number): string {
  if (ms < 1) return '< 1 ms';
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}
