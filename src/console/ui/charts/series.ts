/** The data of a chart: values of several series over time. */

export interface Series {
  name: string;
  /** A class of the style sheet: `good`, `bad` … */
  look: string;
  /** One for each point in time; null if there is none. */
  values: readonly (number | null)[];
}

export interface ChartData {
  /** RFC 3339. */
  moments: readonly string[];
  series: readonly Series[];
}

/** The maximum of the axis: a round number above all values. */
export function roundTop(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((step) => step * power >= value) ?? 10) * power;
}
