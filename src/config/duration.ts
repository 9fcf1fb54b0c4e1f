/**
 * Parses durations of settings and options: `5s`, `30m`, `1h`, `2d`.
 */

const unitSeconds: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 };

/**
 * @param text an integer and a unit: `s`, `m`, `h` or `d`
 * @returns seconds; undefined if the text is not a duration
 */
export function parseDurationSeconds(text: string): number | undefined {
  const match = /^(\d{1,9})\s*([smhd])$/.exec(text.trim());
  if (!match) return undefined;
  const seconds = Number(match[1]) * (unitSeconds[match[2] as string] as number);
  return Number.isSafeInteger(seconds) ? seconds : undefined;
}
