/** The result of an incident: the stranger's latency in each phase, and the bounds that must hold. */

/** Latency of a phase's events in milliseconds. */
export interface PhaseLatency {
  count: number;
  p50: number;
  p99: number;
  max: number;
}

/** A measured value and the bound that it must not exceed. */
export interface Check {
  what: string;
  value: number;
  max: number;
}

export interface Row {
  incident: string;
  phases: Partial<Record<PhaseName, PhaseLatency>>;
  /** Events of the stranger that did not arrive; null if the incident has no stranger. */
  missing: number | null;
  checks: Check[];
  /** Further figures in words. */
  note?: string;
}

export const phaseNames = ['alone', 'during', 'after'] as const;
export type PhaseName = (typeof phaseNames)[number];

/** Describes what differs between the two sizes of an incident. */
export interface Size {
  isSmall: boolean;
  /** Chooses between the value of `--small` and that of the full size. */
  of: <T>(small: T, full: T) => T;
}

export type Incident = (size: Size) => Promise<Row[]>;

/** A value that is not a number does not hold: nothing was measured. */
export function holds({ value, max }: Check): boolean {
  return value <= max;
}

/** Prints rows as a Markdown table. */
export function formatTable(rows: readonly Row[]): string {
  const lines = rows.map(({ incident, phases, missing, checks, note }) => [
    incident,
    ...phaseNames.map((name) => formatLatency(phases[name])),
    missing === null ? '' : String(missing),
    checks.map(formatCheck).join('; '),
    note ?? '',
  ]);
  const head = ['incident', ...phaseNames.map((name) => `${name}: p50, p99, max`), 'missing', 'bounds', ''];
  return [head, head.map(() => '---'), ...lines].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

function formatLatency(latency: PhaseLatency | undefined): string {
  if (latency === undefined) return '';
  if (latency.count === 0) return 'none';
  const { p50, p99, max } = latency;
  return `${p50.toFixed(1)}, ${p99.toFixed(1)}, ${max.toFixed(0)}`;
}

function formatCheck(check: Check): string {
  const { what, value, max } = check;
  return `${what} ${round(value)} of ${round(max)}${holds(check) ? '' : ' **missed**'}`;
}

const round = (value: number): number => Math.round(value * 100) / 100;
