/** `nuncio client delete`: removes an app; its grants, tokens and subscriptions end with it. */

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
    if (isOwnClient(id)) throw new CommandError(`the client "${id}" is an app of the server's own`);
    if (!(await withDatabase(config, (db) => endClient(db, id)))) {
      throw new CommandError(`there is no client "${id}"`);
    }
    print(`deleted the client ${id}`);
  },
};
