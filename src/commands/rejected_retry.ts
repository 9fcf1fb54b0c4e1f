/** `nuncio rejected retry`: validates rejected events again, or one of them with a corrected body. */

import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import { listRejected } from '../events/rejected_events.ts';
import { type Correction, retryRejected } from '../events/retry_rejected.ts';
import { Problem } from '../http/problem.ts';
import { type Command, CommandError, textOption } from './command.ts';
import { loadCommandPlatform } from './command_platform.ts';
import { withDatabase } from './storage.ts';

/** Events per query. */
const pageSize = 100;

export const rejectedRetry: Command = {
  options: [
    ['--id ID', 'one event, by its id in `rejected list`; default all'],
    ['--body JSON', 'corrected body of that event'],
  ],
  async run({ values }, { config, print }) {
    const id = textOption(values, 'id');
    const body = textOption(values, 'body');
    if (id !== undefined && !isId(id)) throw new CommandError('--id must be an id from `rejected list`');
    if (body !== undefined && id === undefined) throw new CommandError('--body requires --id');
    if (body !== undefined && !isJson(body)) throw new CommandError('--body must be JSON');
    const catalogue = createCatalogue((await loadCommandPlatform(config)).eventKinds);
    const correction = body === undefined ? {} : { body };
    const { retried, rejected } = await withDatabase(config, (db) =>
      id === undefined ? retryAll(db, catalogue) : retryOne(db, id, correction, catalogue),
    );
    print(`${retried} ${retried === 1 ? 'event was' : 'events were'} accepted`);
    if (rejected > 0)
      throw new CommandError(
        `${rejected} ${rejected === 1 ? 'event was' : 'events were'} rejected again: see rejected list`,
      );
  },
};

interface Outcome {
  retried: number;
  rejected: number;
}

async function retryOne(
  db: Database,
  id: string,
  correction: Correction,
  catalogue: Catalogue,
): Promise<Outcome> {
  try {
    const done = await db.transaction().execute((tx) => retryRejected(tx, id, correction, catalogue));
    if (done === undefined) throw new CommandError(`rejected event ${id} not found`);
  } catch (error) {
    if (error instanceof Problem) throw new CommandError(`the event was rejected again: ${error.message}`);
    throw error;
  }
  return { retried: 1, rejected: 0 };
}

async function retryAll(db: Database, catalogue: Catalogue): Promise<Outcome> {
  const outcome = { retried: 0, rejected: 0 };
  let after: string | null = null;
  for (;;) {
    const page = await listRejected(db, pageSize, after);
    for (const { id } of page) {
      try {
        const done = await db.transaction().execute((tx) => retryRejected(tx, id, {}, catalogue));
        if (done !== undefined) outcome.retried += 1;
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        outcome.rejected += 1;
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
