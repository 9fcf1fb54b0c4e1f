/** `nuncio user enable`: allows a disabled user to sign in again. Withdrawn grants stay withdrawn. */

import { enableAccount, findAnyAccount } from '../accounts/account.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const userEnable: Command = {
  positionals: ['USER'],
  async run({ positionals }, { config, print }) {
    const user = positionals[0] as string;
    const email = await withDatabase(config, async (db) => {
      const account = await findAnyAccount(db, user);
      if (account === undefined) throw new CommandError(`user "${user}" not found`);
      if (!(await enableAccount(db, account.id))) {
        throw new CommandError(`user ${account.email ?? account.id} is not disabled`);
      }
      return account.email ?? account.id;
    });
    print(`enabled user ${email}; they must connect their apps again`);
  },
};
