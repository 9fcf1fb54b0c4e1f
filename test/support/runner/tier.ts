/**
 * Which tests run. `npm test` leaves out what only repeats behavior in another environment: generated programs and those in other
 * languages, installed packages, examples in a browser, other sizes and themes of the console, long runs and large data.
 * `npm run test:all` runs all of it. What a test repeats decides, not how long it takes.
 */

/** `first` is `npm test`, `rest` what that leaves out, `all` both. */
export type Tier = 'first' | 'rest' | 'all';

/** The environment variable with the tier. */
export const tierVariable = 'TEST_TIER';

/** The tier of this run. */
export const tier = (process.env[tierVariable] ?? 'all') as Tier;

/** Returns how often a test with random input repeats: less in `npm test`. */
export function runs(few: number, many: number): number {
  return tier === 'first' ? few : many;
}

/** Returns the variants of a test that run. @param every the first of them is the one that `npm test` runs */
export function variants<Variant>(every: readonly Variant[]): readonly Variant[] {
  return tier === 'first' ? every.slice(0, 1) : tier === 'rest' ? every.slice(1) : every;
}
