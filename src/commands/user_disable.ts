/** `nuncio user disable`: ends a user's sessions, prevents sign-in, and withdraws their grants. */

import { disableAccount, findAnyAccount } from '../accounts/account.ts';
import { withAccountHold } from '../grants/delivery_hold.ts';
import { endSessions } from '../oauth/storage/end_sessions.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const userDisable: Command = {
  positionals: ['USER'],
  async run({ positionals }, { config, print }) {
    const user = positionals[0] as string;
    const email = await withDatabase(config, async (db) => {
      const account = await findAnyAccount(db, user);
      if (account === undefined) throw new CommandError(`user "${user}" not found`);
      return withAccountHold(db, account.id, async (tx) => {
        if (!(await disableAccount(tx, account.id))) {
          throw new CommandError(`user ${account.email ?? account.id} is already disabled`);
        }
        await endSessions(tx, account.id);
        return account.email ?? account.id;
      });
    });
    print(`disabled user ${email} and withdrew their grants`);
  },
};
