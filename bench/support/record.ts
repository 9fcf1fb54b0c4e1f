/** Results of a program as data, one JSON line each, in the file that `BENCH_RECORDS` names. `bench/report.ts` reads them. */

import { appendFileSync } from 'node:fs';

/** A result: what was measured, with its figures. Names of figures contain their unit. */
export interface BenchRecord {
  of: string;
  [figure: string]: string | number;
}

/** Writes a result, if a report is being made. */
export function record(result: BenchRecord): void {
  const file = process.env.BENCH_RECORDS;
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(result)}\n`);
}
