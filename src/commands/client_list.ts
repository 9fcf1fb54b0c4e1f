/** `nuncio client list`: lists registered apps. */

import { listClients } from '../clients/client.ts';
import { listCommand } from './list_command.ts';

export const clientList = listCommand({
  read: listClients,
  none: 'No apps are registered.',
  toJson: (client) => ({
    client_id: client.id,
    name: client.name,
    redirect_uris: client.redirectUris,
    grant_types: client.grantTypes,
    scopes: client.scopes,
    auth_method: client.authMethod,
    created_at: client.createdAt.toISOString(),
  }),
  toLine({ id, name, grantTypes }, clients) {
    const width = Math.max(...clients.map((client) => client.id.length));
    return `${id.padEnd(width)}  ${name}  (${grantTypes.join(', ')})`;
  },
});
