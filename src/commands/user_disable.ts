/**
 * `nuncio user disable`: a user cannot sign in, is signed out everywhere, and every app that acted for them is stopped.
 */

import { disableAccount, findAnyAccount } from '../accounts/account.ts';
import { endSessions } from '../oauth/storage/end_sessions.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const userDisable: Command = {
  options: {},
  help: [],
  positionals: ['USER'],
  async run({ positionals }, { config, print }) {
    const user = positionals[0] as string;
    const email = await withDatabase(config, (db) =>
      db.transaction().execute(async (tx) => {
        const account = await findAnyAccount(tx, user);
        if (account === undefined) throw new CommandError(`there is no user "${user}"`);
        if (!(await disableAccount(tx, account.id))) {
          throw new CommandError(`the user ${account.email ?? account.id} is disabled already`);
        }
        await endSessions(tx, account.id);
        return account.email ?? account.id;
      }),
    );
    print(`disabled the user ${email}; every app that acted for them is stopped`);
  },
};
