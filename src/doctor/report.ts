/**
 * What the doctor reports: one check for each thing that it looks at, with its state, what was found in one sentence, and what to do.
 */

import { shown } from '../shared/response_text.ts';
import { version } from '../version.ts';

/**
 * `notice`: works, but could be better. `warning`: will become a problem. `error`: is one. `unknown`: could not be seen, for
 * example because the database user may not read it.
 */
export const states = ['ok', 'unknown', 'notice', 'warning', 'error'] as const;
export type State = (typeof states)[number];

export type Value = string | number | boolean | null;

export interface Check {
  /** Stable, such as `database.version`. */
  name: string;
  state: State;
  /** One sentence. */
  summary: string;
  /** What to do, or null if there is nothing to do. */
  advice: string | null;
  /** What the sentence says, for programs. Durations in seconds, sizes in bytes. */
  values: Readonly<Record<string, Value>>;
}

export interface Report {
  /** ISO 8601. */
  created_at: string;
  version: string;
  /** The worst state of the checks. */
  state: State;
  checks: readonly Check[];
}

/** A part of the doctor: looks at one subject and reports one or more checks. */
export interface Probe {
  /** Name of the check that is reported if the probe itself fails. */
  name: string;
  run: () => Promise<Check | readonly Check[]>;
}

/** Maximum characters of a summary or an advice, which may repeat what a server sent. */
const sentenceMax = 1_000;
/** A probe is given up after this time. */
const probeMs = 15_000;
/** SQLSTATE insufficient_privilege. */
const insufficientPrivilege = '42501';

export function check(
  name: string,
  state: State,
  summary: string,
  advice: string | null = null,
  values: Check['values'] = {},
): Check {
  const short = (text: string) => shown(text, sentenceMax);
  return { name, state, summary: short(summary), advice: advice === null ? null : short(advice), values };
}

/** Runs all probes, one after the other: a struggling server gets little load from its doctor. */
export async function examine(probes: readonly Probe[]): Promise<Report> {
  const checks: Check[] = [];
  for (const probe of probes) checks.push(...(await runProbe(probe)));
  return reportOf(checks);
}

export function reportOf(checks: readonly Check[]): Report {
  const worst = Math.max(0, ...checks.map(({ state }) => states.indexOf(state)));
  return { created_at: new Date().toISOString(), version, state: states[worst] as State, checks };
}

async function runProbe({ name, run }: Probe): Promise<Check[]> {
  const timeout = Promise.withResolvers<never>();
  const timer = setTimeout(() => timeout.reject(new Error(`no result after ${probeMs / 1_000} s`)), probeMs);
  try {
    return [await Promise.race([run(), timeout.promise])].flat();
  } catch (error) {
    const { code, message } = error as { code?: unknown; message: string };
    const sentence = `could not be checked: ${message.trim().replace(/\s*\n\s*/g, ' ')}`;
    return code === insufficientPrivilege
      ? [check(name, 'unknown', sentence, 'Grant the database user the role pg_monitor to see it.')]
      : [check(name, 'error', sentence)];
  } finally {
    clearTimeout(timer);
  }
}

/** Exit codes for scripts: 0 no problem, 1 warnings, 2 errors. */
export function exitCodeOf({ state }: Report): 0 | 1 | 2 {
  return state === 'error' ? 2 : state === 'warning' ? 1 : 0;
}

/** A size for people. */
export function bytesText(bytes: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  const step = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1_024 ** step;
  return `${value >= 100 || step === 0 ? Math.round(value) : value.toFixed(1)} ${units[step]}`;
}

/** A duration for people, in its largest unit. */
export function durationText(seconds: number): string {
  const units: readonly [number, string][] = [
    [86_400, 'day'],
    [3_600, 'hour'],
    [60, 'minute'],
    [1, 'second'],
  ];
  const [size, name] = units.find(([length]) => seconds >= 2 * length) ?? [1, 'second'];
  const count = Math.round(seconds / size);
  return `${count} ${name}${count === 1 ? '' : 's'}`;
}

/** The singular or plural of a noun, with its number. */
export function countText(count: number, noun: string, plural = `${noun}s`): string {
  return `${count} ${count === 1 ? noun : plural}`;
}
