/** `nuncio client list`: lists registered apps. */

import { listClients } from '../clients/client.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

export const clientList: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    const clients = await withDatabase(config, listClients);
    if (values.json === true) {
      const rows = clients.map((client) => ({
        client_id: client.id,
        name: client.name,
        redirect_uris: client.redirectUris,
        grant_types: client.grantTypes,
        scopes: client.scopes,
        auth_method: client.authMethod,
        created_at: client.createdAt.toISOString(),
      }));
      print(JSON.stringify(rows));
      return;
    }
    const width = Math.max(0, ...clients.map(({ id }) => id.length));
    for (const client of clients) {
      print(`${client.id.padEnd(width)}  ${client.name}  (${client.grantTypes.join(', ')})`);
    }
  },
};
