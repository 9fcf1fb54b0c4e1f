/** `nuncio user create`: creates an account. */

import { createAccount, makeAdmin } from '../accounts/account.ts';
import {
  ensureExternalAccounts,
  externalIdCharactersMax,
  isExternalId,
} from '../accounts/external_account.ts';
import type { Config } from '../config/config.ts';
import { endSessions } from '../oauth/storage/end_sessions.ts';
import { type Command, type OptionValues, textOption, UsageError } from './command.ts';
import { passwordHelp, readPassword } from './password_option.ts';
import { withDatabase } from './storage.ts';

export const userCreate: Command = {
  options: [
    ['--email E', 'e-mail address to sign in with'],
    [
      '--external-id X',
      'user id in the application, instead of --email and --password; an existing account is kept',
    ],
    [
      '--email-verified',
      'the address is verified: a provider with trustEmail can sign in to the account with it',
    ],
    passwordHelp,
    ['--no-password', 'the user signs in only with a provider; requires --email-verified'],
    ['--name N', 'display name; default the part of the address before the @'],
    ['--admin', 'make the account an administrator, who can administer the server in the console'],
    ['--json', 'print JSON'],
  ],
  async run({ values }, { config, print }) {
    const externalId = textOption(values, 'external-id');
    if (externalId !== undefined) return createExternal(externalId, values, config, print);
    const name = textOption(values, 'name');
    const isEmailVerified = values['email-verified'] === true;
    const wanted = {
      email: textOption(values, 'email', true),
      password: await readWantedPassword(values, isEmailVerified),
      isEmailVerified,
      isAdmin: values.admin === true,
      ...(name === undefined ? {} : { name }),
    };
    const account = await withDatabase(config, (db) => createAccount(db, wanted));
    const { id, email, isAdmin } = account;
    if (values.json === true) print(JSON.stringify({ id, email, name: account.name, admin: isAdmin }));
    else print(`created user ${email} (${id})`);
  },
};

/** @returns null for an account whose user signs in only with a provider */
async function readWantedPassword(values: OptionValues, isEmailVerified: boolean): Promise<string | null> {
  if (values['no-password'] !== true) return readPassword(values);
  if (values.password !== undefined) throw new UsageError('--no-password and --password exclude each other');
  if (!isEmailVerified)
    throw new UsageError('--no-password requires --email-verified: otherwise the user could not sign in');
  return null;
}

/** Creates an external account, usually for an administrator: other accounts are created by the application. */
async function createExternal(
  externalId: string,
  values: OptionValues,
  config: Config,
  print: (line: string) => void,
): Promise<void> {
  if (!isExternalId(externalId)) {
    throw new UsageError(
      `--external-id must have 1 to ${externalIdCharactersMax} characters and no control characters`,
    );
  }
  for (const name of ['email', 'email-verified', 'password', 'no-password', 'name']) {
    if (values[name] !== undefined) throw new UsageError(`--${name} cannot be combined with --external-id`);
  }
  const isAdmin = values.admin === true;
  const id = await withDatabase(config, (db) =>
    db.transaction().execute(async (tx) => {
      const { ids } = await ensureExternalAccounts(tx, [externalId]);
      const found = ids.get(externalId) as string;
      // The application may have begun the account's sessions.
      if (isAdmin && (await makeAdmin(tx, found))) await endSessions(tx, found);
      return found;
    }),
  );
  if (values.json === true) print(JSON.stringify({ id, external_id: externalId, admin: isAdmin }));
  else print(`the user with external id ${externalId} has account ${id}`);
}
