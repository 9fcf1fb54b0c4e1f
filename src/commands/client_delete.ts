/** `nuncio client delete`: deletes an app with its grants, tokens and subscriptions. */

import { isOwnClient } from '../clients/own_clients.ts';
import { endClient } from '../grants/grant.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const clientDelete: Command = {
  options: {},
  help: [],
  positionals: ['ID'],
  async run({ positionals }, { config, print }) {
    const id = positionals[0] as string;
    if (isOwnClient(id))
      throw new CommandError(`client "${id}" is an app of this server and cannot be deleted`);
    if (!(await withDatabase(config, (db) => endClient(db, id)))) {
      throw new CommandError(`client "${id}" not found`);
    }
    print(`deleted client ${id}`);
  },
};
