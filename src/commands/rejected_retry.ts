/** `nuncio rejected retry`: rejected events are checked again, one of them perhaps with a corrected body. */

import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import { listRejected } from '../events/rejected_events.ts';
import { type Correction, retryRejected } from '../events/retry_rejected.ts';
import { Problem } from '../http/problem.ts';
import { loadPlatform } from '../platform.ts';
import { type Command, CommandError, textOption } from './command.ts';
import { withDatabase } from './storage.ts';

/** Events read at a time. */
const pageSize = 100;

export const rejectedRetry: Command = {
  options: { id: { type: 'string' }, body: { type: 'string' } },
  help: [
    ['--id ID', 'one event, as `rejected list` shows it; all of them without it'],
    ['--body JSON', 'the corrected body of that event'],
  ],
  async run({ values }, { config, print }) {
    const id = textOption(values, 'id');
    const body = textOption(values, 'body');
    if (id !== undefined && !isId(id))
      throw new CommandError('the id must be one that `rejected list` shows');
    if (body !== undefined && id === undefined)
      throw new CommandError('--body is for one event: name it with --id');
    if (body !== undefined && !isJson(body)) throw new CommandError('the body must be JSON');
    const catalogue = createCatalogue((await loadPlatform(config.configFile)).eventKinds);
    const correction = body === undefined ? {} : { body };
    const { retried, refused } = await withDatabase(config, (db) =>
      id === undefined ? retryAll(db, catalogue) : retryOne(db, id, correction, catalogue),
    );
    print(`${retried} ${retried === 1 ? 'event waits' : 'events wait'} for the fan-out`);
    if (refused > 0) throw new CommandError(`${refused} of them are refused again: see rejected list`);
  },
};

interface Outcome {
  retried: number;
  refused: number;
}

async function retryOne(
  db: Database,
  id: string,
  correction: Correction,
  catalogue: Catalogue,
): Promise<Outcome> {
  try {
    const done = await db.transaction().execute((tx) => retryRejected(tx, id, correction, catalogue));
    if (done === undefined) throw new CommandError(`no rejected event has the id ${id}`);
  } catch (error) {
    if (error instanceof Problem) throw new CommandError(`it is refused again: ${error.message}`);
    throw error;
  }
  return { retried: 1, refused: 0 };
}

async function retryAll(db: Database, catalogue: Catalogue): Promise<Outcome> {
  const outcome = { retried: 0, refused: 0 };
  let after: string | null = null;
  for (;;) {
    const page = await listRejected(db, pageSize, after);
    for (const { id } of page) {
      try {
        const done = await db.transaction().execute((tx) => retryRejected(tx, id, {}, catalogue));
        if (done !== undefined) outcome.retried += 1;
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        outcome.refused += 1;
      }
    }
    if (page.length < pageSize) return outcome;
    after = page.at(-1)?.id ?? null;
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
