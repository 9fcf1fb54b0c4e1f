/** `nuncio user enable`: a disabled user may sign in again. What was withdrawn stays withdrawn. */

import { enableAccount, findAnyAccount } from '../accounts/account.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const userEnable: Command = {
  options: {},
  help: [],
  positionals: ['USER'],
  async run({ positionals }, { config, print }) {
    const user = positionals[0] as string;
    const email = await withDatabase(config, async (db) => {
      const account = await findAnyAccount(db, user);
      if (account === undefined) throw new CommandError(`there is no user "${user}"`);
      if (!(await enableAccount(db, account.id))) {
        throw new CommandError(`the user ${account.email ?? account.id} is not disabled`);
      }
      return account.email ?? account.id;
    });
    print(`enabled the user ${email}; apps have to be connected anew`);
  },
};
