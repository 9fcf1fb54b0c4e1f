/** `/apps/{id}/connections`: what happened when the app tried to connect, for its developers. Users are not named. */

import Type from 'typebox';
import { page, pageParameters } from '../../http/describe.ts';
import { sendPage } from '../../http/page.ts';
import { named, strict } from '../../http/schema.ts';
import { member } from '../admission.ts';
import {
  connectionDescription,
  connectionMembers,
  connectionParameters,
  cursorOf,
  readConnectionPage,
  readConnectionQuery,
  representConnection,
} from '../connections.ts';
import { route, serve } from '../route.ts';
import { type AppRoutesOptions, requireApp } from './app_access.ts';
import { appId, tag } from './schemas.ts';

const AppConnection = named('AppConnection', Type.Object(connectionMembers, strict));

export const appConnectionRoutes = {
  list: route({
    id: 'list_app_connections',
    method: 'get',
    path: '/apps/{id}/connections',
    tag,
    summary: 'List the connections of an app, step by step',
    description: connectionDescription,
    admission: member('read:apps'),
    parameters: [appId, ...pageParameters, ...connectionParameters],
    responses: page('A page of connections.', AppConnection),
  }),
};

export function registerAppConnections(options: AppRoutesOptions): void {
  const { db } = options;

  serve(options, appConnectionRoutes.list, async ({ request, reply, caller, params }) => {
    const app = await requireApp(db, caller, params.id);
    const query = readConnectionQuery(request);
    const filter = { ...query.filter, clientId: app.client.id };
    const { found, next } = await readConnectionPage(db, request, filter, query);
    return sendPage(request, reply, query, found, representConnection, cursorOf, next);
  });
}
