/**
 * Commands that print a list: a line for each row or, with `--json`, one JSON array. An empty list is said on standard error,
 * so that programs that count lines count none.
 */

import type { Database } from '../database/database.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

/** Maximum number of rows that a list of events or notices prints. */
export const shownMax = 100;

interface List<Row> {
  read: (db: Database) => Promise<readonly Row[]>;
  toJson: (row: Row) => object;
  toLine: (row: Row, rows: readonly Row[]) => string;
  /** Said of an empty list. */
  none: string;
  /** Description of `--json`. */
  jsonHelp?: string;
}

export function listCommand<Row>({
  read,
  toJson,
  toLine,
  none,
  jsonHelp = 'print JSON',
}: List<Row>): Command {
  return {
    options: [['--json', jsonHelp]],
    async run({ values }, { config, print, printError }) {
      const rows = await withDatabase(config, (db) => read(db));
      if (values.json === true) print(JSON.stringify(rows.map(toJson)));
      else if (rows.length === 0) printError(none);
      else for (const row of rows) print(toLine(row, rows));
    },
  };
}
