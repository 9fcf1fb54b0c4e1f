/** `nuncio trigger`: an event of a kind, with its example as the body; for trying what receives it. */

import { findAccount, findAccountByEmail } from '../accounts/account.ts';
import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import { appendEvent } from '../events/event.ts';
import { loadPlatform } from '../platform.ts';
import { type Command, CommandError, type OptionValues, textOption, UsageError } from './command.ts';
import { demoUser } from './demo_data.ts';
import { withDatabase } from './storage.ts';

export const trigger: Command = {
  options: { account: { type: 'string' }, body: { type: 'string' }, json: { type: 'boolean' } },
  help: [
    [
      '--account ID',
      `whose event it is, by id or e-mail address; by default ${demoUser.email}, where there is one`,
    ],
    ['--body JSON', 'its body, by default the example of the kind'],
    ['--json', 'print JSON'],
  ],
  positionals: ['KIND'],
  async run({ values, positionals }, { config, print }) {
    const kind = positionals[0] as string;
    const { eventKinds } = await loadPlatform(config.configFile);
    const body = readBody(values, kind, createCatalogue(eventKinds));
    const wanted = textOption(values, 'account');
    const id = await withDatabase(config, async (db) => {
      const accountId = await accountOf(db, wanted ?? demoUser.email);
      if (accountId === undefined && wanted === undefined) throw new UsageError('--account is required');
      if (accountId === undefined) throw new CommandError(`there is no account "${wanted}"`);
      // A server that runs finds it within a second: it looks by itself.
      return db.transaction().execute((tx) => appendEvent(tx, { accountId, kind, body }));
    });
    print(values.json === true ? JSON.stringify({ id }) : `published ${kind} as ${id}`);
  },
};

function readBody(values: OptionValues, kind: string, catalogue: Catalogue): unknown {
  const declared = catalogue.kinds.get(kind);
  if (declared === undefined || declared.isBuiltIn) {
    const names = [...catalogue.kinds.values()].filter((entry) => !entry.isBuiltIn).map(({ name }) => name);
    throw new UsageError(`KIND is "${kind}": it may be ${names.join(', ')}`);
  }
  const text = textOption(values, 'body');
  if (text === undefined) return declared.example;
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    throw new UsageError('--body is not JSON');
  }
  const [fault] = catalogue.faultsOf(kind, body, '');
  if (fault !== undefined)
    throw new UsageError(`--body${fault.pointer && ` at ${fault.pointer}`} ${fault.message}`);
  return body;
}

async function accountOf(db: Database, text: string): Promise<string | undefined> {
  if (isId(text)) return (await findAccount(db, text))?.id;
  return (await findAccountByEmail(db, text.trim().toLowerCase()))?.account.id;
}
