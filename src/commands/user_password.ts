/** `nuncio user password`: another password for a user, who is signed out everywhere. Connected apps stay connected. */

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
        if (account === undefined) throw new CommandError(`there is no user "${user}"`);
        await changePassword(tx, account.id, password);
        await endSessions(tx, account.id);
        return account.email ?? account.id;
      }),
    );
    print(`changed the password of ${email}, who is signed out everywhere`);
  },
};
