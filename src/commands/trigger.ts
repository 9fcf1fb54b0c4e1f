/** `nuncio trigger`: publishes an event with the example body of its kind, for testing subscribers. */

import { findAccount, findAccountByEmail } from '../accounts/account.ts';
import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { type Catalogue, createCatalogue } from '../events/catalogue.ts';
import { appendEvent } from '../events/event.ts';
import { assignAll } from './body_assignment.ts';
import {
  type Command,
  CommandError,
  type OptionValues,
  textOption,
  textOptions,
  UsageError,
} from './command.ts';
import { loadCommandPlatform } from './command_platform.ts';
import { demoUser } from './demo_data.ts';
import { withDatabase } from './storage.ts';

export const trigger: Command = {
  options: [
    [
      '--account ID',
      `account of the event, by id or e-mail address; default ${demoUser.email}, if it exists`,
    ],
    ['--body JSON', 'body of the event; default the example of the kind'],
    ['--set PATH=VALUE', 'change a value of the body, such as invoice.amount=100', 'repeatable'],
    ['--json', 'print JSON'],
  ],
  positionals: ['KIND'],
  async run({ values, positionals }, { config, print }) {
    const kind = positionals[0] as string;
    const { eventKinds } = await loadCommandPlatform(config);
    const catalogue = createCatalogue(eventKinds);
    const body = readBody(values, kind, catalogue);
    const version = catalogue.kinds.get(kind)?.version ?? null;
    const wanted = textOption(values, 'account');
    const id = await withDatabase(config, async (db) => {
      const accountId = await findAccountId(db, wanted ?? demoUser.email);
      if (accountId === undefined && wanted === undefined) {
        throw new UsageError(`--account is required, because there is no user ${demoUser.email}`);
      }
      if (accountId === undefined) throw new CommandError(`account "${wanted}" not found`);
      // No notification is needed: a running server polls every second.
      return db.transaction().execute((tx) => appendEvent(tx, { accountId, kind, version, body }));
    });
    print(values.json === true ? JSON.stringify({ id }) : `published ${kind} as ${id}`);
  },
};

function readBody(values: OptionValues, kind: string, catalogue: Catalogue): unknown {
  const declared = catalogue.kinds.get(kind);
  if (declared === undefined || declared.isBuiltIn) {
    const names = [...catalogue.kinds.values()].filter((entry) => !entry.isBuiltIn).map(({ name }) => name);
    throw new UsageError(`KIND is "${kind}": it must be one of ${names.join(', ')}`);
  }
  const assignments = textOptions(values, 'set');
  const given = parseBody(textOption(values, 'body'), declared.example);
  const body = assignAll(given, assignments, declared);
  const [error] = catalogue.errorsOf(kind, body, '');
  if (error !== undefined) {
    const option = assignments.length === 0 ? '--body' : 'with --set, the body';
    throw new UsageError(`${option}${error.pointer && ` at ${error.pointer}`} ${error.message}`);
  }
  return body;
}

function parseBody(text: string | undefined, example: unknown): unknown {
  if (text === undefined) return example;
  try {
    return JSON.parse(text);
  } catch {
    throw new UsageError('--body must be JSON');
  }
}

async function findAccountId(db: Database, text: string): Promise<string | undefined> {
  if (isId(text)) return (await findAccount(db, text))?.id;
  return (await findAccountByEmail(db, text.trim().toLowerCase()))?.account.id;
}
