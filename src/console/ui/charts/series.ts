/** What the charts draw: values of a few series over moments in time. */

export interface Series {
  name: string;
  /** Of the style sheet: `good`, `bad` … */
  look: string;
  /** One for each moment; null where there is none. */
  values: readonly (number | null)[];
}

export interface ChartData {
  /** RFC 3339. */
  moments: readonly string[];
  series: readonly Series[];
}

/** The top of the axis: a round number that everything fits below. */
export function roundTop(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((step) => step * power >= value) ?? 10) * power;
}
