/** How long rows are kept: the section `retention` of `nuncio.config.ts`. */

import { unknownName } from '../shared/nearest.ts';

export interface RetentionSettings {
  /** Events, their deliveries and attempts, and events that are parked. */
  readonly deliveriesDays: number;
  /** Headers and bodies of the responses to deliveries. At most `deliveriesDays`, which is the default. */
  readonly responsesDays: number;
  /** Rejected events. Null, the default, keeps them until an operator retries or discards them. */
  readonly rejectedDays: number | null;
  /** The audit log. */
  readonly auditDays: number;
  /** Traces of connection attempts. */
  readonly connectionsDays: number;
  /** Mails that were sent or given up, and the notices in them. */
  readonly mailsDays: number;
}

const defaultRetention: RetentionSettings = Object.freeze({
  deliveriesDays: 30,
  responsesDays: 30,
  rejectedDays: null,
  auditDays: 90,
  connectionsDays: 7,
  mailsDays: 30,
});

/** Minimum and maximum days. Each day of deliveries is three partitions, which every plan has to consider. */
const ranges: Readonly<Record<keyof RetentionSettings, readonly [number, number]>> = {
  deliveriesDays: [7, 366],
  responsesDays: [1, 366],
  rejectedDays: [1, 3_660],
  auditDays: [1, 3_660],
  connectionsDays: [1, 90],
  mailsDays: [1, 366],
};

/** @param report called for each problem with its place and the reason */
export function readRetention(
  declared: Partial<RetentionSettings> | undefined,
  report: (place: string, reason: string) => void,
): RetentionSettings {
  if (
    declared !== undefined &&
    (typeof declared !== 'object' || declared === null || Array.isArray(declared))
  ) {
    report('retention', 'must be an object');
    return defaultRetention;
  }
  const read: Record<string, number | null> = {};
  for (const [name, value] of Object.entries(declared ?? {})) {
    if (value === undefined) continue;
    if (!Object.hasOwn(ranges, name)) {
      report(`retention.${name}`, unknownName(name, Object.keys(ranges)));
      continue;
    }
    const [min, max] = ranges[name as keyof RetentionSettings];
    const isNull = value === null && name === 'rejectedDays';
    if (isNull || (Number.isInteger(value) && Number(value) >= min && Number(value) <= max))
      read[name] = value;
    else {
      const orNull = name === 'rejectedDays' ? ', or null to keep them' : '';
      report(`retention.${name}`, `must be an integer from ${min} to ${max} (days)${orNull}`);
    }
  }
  const settings = { ...defaultRetention, ...read };
  if (read.responsesDays === undefined) settings.responsesDays = settings.deliveriesDays;
  if (settings.responsesDays > settings.deliveriesDays) {
    report(
      'retention.responsesDays',
      'must be at most retention.deliveriesDays: a response is part of a delivery',
    );
  }
  return Object.freeze(settings);
}
