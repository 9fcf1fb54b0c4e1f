/** `nuncio client delete`: deletes an app with its grants, tokens and subscriptions. */

import { findClient } from '../clients/client.ts';
import { isReservedClient } from '../clients/own_clients.ts';
import { endClient } from '../grants/grant.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const clientDelete: Command = {
  positionals: ['ID'],
  async run({ positionals }, { config, print }) {
    const id = positionals[0] as string;
    if (isReservedClient(id))
      throw new CommandError(`client "${id}" is an app of this server and cannot be deleted`);
    await withDatabase(config, async (db) => {
      const client = await findClient(db, id);
      if (client?.origin === 'document' && client.state === 'suspended') {
        throw new CommandError(
          `client "${id}" is suspended; deleted, it would return without the suspension`,
        );
      }
      if (!(await endClient(db, id))) throw new CommandError(`client "${id}" not found`);
    });
    print(`deleted client ${id}`);
  },
};
