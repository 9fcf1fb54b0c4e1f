/** `nuncio user password`: sets a user's password and signs them out everywhere. Grants of apps are not affected. */

import { changePassword, findAnyAccount } from '../accounts/account.ts';
import { endSessions } from '../oauth/storage/end_sessions.ts';
import { type Command, CommandError } from './command.ts';
import { passwordHelp, readPassword } from './password_option.ts';
import { withDatabase } from './storage.ts';

export const userPassword: Command = {
  options: { password: { type: 'string' } },
  help: [passwordHelp],
  positionals: ['USER'],
  async run({ values, positionals }, { config, print }) {
    const user = positionals[0] as string;
    const password = await readPassword(values);
    const email = await withDatabase(config, (db) =>
      db.transaction().execute(async (tx) => {
        const account = await findAnyAccount(tx, user);
        if (account === undefined) throw new CommandError(`user "${user}" not found`);
        await changePassword(tx, account.id, password);
        await endSessions(tx, account.id);
        return account.email ?? account.id;
      }),
    );
    print(`changed the password of ${email} and ended all their sessions`);
  },
};
