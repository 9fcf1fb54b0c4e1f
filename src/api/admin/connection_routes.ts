/** `/admin/connections`: connections of all apps, and failed attempts of apps that are not registered. */

import Type from 'typebox';
import { sendPage } from '../../http/page.ts';
import { Id, Nullable, named, strict } from '../../http/schema.ts';
import {
  connectionDescription,
  connectionMembers,
  connectionParameters,
  cursorOf,
  readConnectionPage,
  readConnectionQuery,
  representConnection,
} from '../connections.ts';
import { serve } from '../route.ts';
import { AccountLabel, readNames } from './names.ts';
import { type AdminOptions, listRoute } from './options.ts';
import { accountParameter, clientParameter, readIdParameter, readTextParameter } from './parameters.ts';

const AdminConnection = named(
  'AdminConnection',
  Type.Object(
    {
      ...connectionMembers,
      client: Nullable(
        Type.String({
          description: 'As the app sent it. Null if it sent none, or one that may be a secret.',
        }),
      ),
      client_name: Nullable(Type.String({ description: 'Null for an app that is not registered.' })),
      account: Nullable(Id()),
      account_name: AccountLabel(),
      grant: Nullable(Id()),
    },
    strict,
  ),
);

export const connectionRoutes = {
  list: listRoute(
    'list_connections',
    '/admin/connections',
    'List connections of apps, step by step',
    AdminConnection,
    [...connectionParameters, accountParameter, clientParameter],
    connectionDescription,
  ),
};

export function registerAdminConnections(options: AdminOptions): void {
  const { db } = options;

  serve(options, connectionRoutes.list, async ({ request, reply }) => {
    const query = readConnectionQuery(request, ['account', 'client']);
    const accountId = readIdParameter(query.parameters, 'account');
    const clientId = readTextParameter(query.parameters, 'client', 2_048);
    const filter = { ...query.filter, accountId, clientId };
    const { found, next } = await readConnectionPage(db, request, filter, query);
    const names = await readNames(
      db,
      found.map((connection) => connection.accountId),
      found.map((connection) => connection.clientId),
    );
    return sendPage(
      request,
      reply,
      query,
      found,
      (connection) => ({
        ...representConnection(connection),
        client: connection.clientId,
        client_name: names.client(connection.clientId),
        account: connection.accountId,
        account_name: names.account(connection.accountId),
        grant: connection.grantId,
      }),
      cursorOf,
      next,
    );
  });
}
