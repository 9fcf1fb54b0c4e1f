/** `nuncio user create`: makes an account. */

import { createAccount, makeAdmin } from '../accounts/account.ts';
import {
  ensureExternalAccounts,
  externalIdCharactersMax,
  isExternalId,
} from '../accounts/external_account.ts';
import type { Config } from '../config/config.ts';
import { type Command, type OptionValues, textOption, UsageError } from './command.ts';
import { passwordHelp, readPassword } from './password_option.ts';
import { withDatabase } from './storage.ts';

export const userCreate: Command = {
  options: {
    email: { type: 'string' },
    'external-id': { type: 'string' },
    password: { type: 'string' },
    name: { type: 'string' },
    admin: { type: 'boolean' },
    json: { type: 'boolean' },
  },
  help: [
    ['--email E', 'address to log in with'],
    [
      '--external-id X',
      'user id in the application where the user signs in, instead of an address and a password; a known one is kept',
    ],
    passwordHelp,
    ['--name N', 'what the user is called; by default the part of the address before the @'],
    ['--admin', 'makes the account an administrator: its console also administers the server'],
    ['--json', 'print JSON'],
  ],
  async run({ values }, { config, print }) {
    const externalId = textOption(values, 'external-id');
    if (externalId !== undefined) return createExternal(externalId, values, config, print);
    const name = textOption(values, 'name');
    const wanted = {
      email: textOption(values, 'email', true),
      password: await readPassword(values),
      isAdmin: values.admin === true,
      ...(name === undefined ? {} : { name }),
    };
    const account = await withDatabase(config, (db) => createAccount(db, wanted));
    const { id, email, isAdmin } = account;
    if (values.json === true) print(JSON.stringify({ id, email, name: account.name, admin: isAdmin }));
    else print(`created the user ${email} (${id})`);
  },
};

/** For an application's user, mostly to make them an administrator: everybody else's account comes by itself. */
async function createExternal(
  externalId: string,
  values: OptionValues,
  config: Config,
  print: (line: string) => void,
): Promise<void> {
  if (!isExternalId(externalId)) {
    throw new UsageError(
      `--external-id may have 1 to ${externalIdCharactersMax} characters, without control characters`,
    );
  }
  for (const name of ['email', 'password', 'name']) {
    if (values[name] !== undefined) throw new UsageError(`--${name}: the application tells that of its user`);
  }
  const isAdmin = values.admin === true;
  const id = await withDatabase(config, (db) =>
    db.transaction().execute(async (tx) => {
      const { ids } = await ensureExternalAccounts(tx, [externalId]);
      const found = ids.get(externalId) as string;
      if (isAdmin) await makeAdmin(tx, found);
      return found;
    }),
  );
  if (values.json === true) print(JSON.stringify({ id, external_id: externalId, admin: isAdmin }));
  else print(`the user with the external id ${externalId} has the account ${id}`);
}
