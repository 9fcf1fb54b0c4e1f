/** Reads times in requests (RFC 3339). */

const form = /^(\d{4}-\d\d-\d\d)T(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)$/;

/** @returns undefined for an invalid time, such as February 30 */
export function readTime(value: unknown): Date | undefined {
  const day = typeof value === 'string' ? form.exec(value)?.[1] : undefined;
  if (day === undefined || toIso(day)?.slice(0, 10) !== day) return undefined;
  const iso = toIso(value as string);
  return iso !== undefined && /^(?!0000)\d{4}-/.test(iso) ? new Date(iso) : undefined;
}

function toIso(text: string): string | undefined {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? undefined : time.toISOString();
}
