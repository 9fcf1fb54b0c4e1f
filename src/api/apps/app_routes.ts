/**
 * `/apps`: the apps of the signed-in app developer. Members see only their own apps; other apps are 404. Administrators
 * see all apps.
 */

import { type App, appsMax, changeApp, createApp, listApps } from '../../apps/app.ts';
import { applyAppPatch, withoutNulls } from '../../apps/metadata.ts';
import { listSecrets } from '../../apps/secret.ts';
import { deleteClient } from '../../clients/client.ts';
import { newId } from '../../crypto/ids.ts';
import { inTransaction } from '../../database/database.ts';
import { actAs, requireAccount } from '../../grants/actor.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import {
  createdHeaders,
  jsonBody,
  keyParameter,
  mergePatchBody,
  ok,
  page,
  pageParameters,
} from '../../http/describe.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { member } from '../admission.ts';
import { route, serve } from '../route.ts';
import {
  type AppRoutesOptions,
  appNotFound,
  createdResponse,
  idempotencyNamespace,
  requireApp,
  requireLockedApp,
  requireManagedHere,
  requireOwner,
  showApp,
} from './app_access.ts';
import { appPath, representApp } from './representation.ts';
import { AppCreate, AppMade, AppMergePatch, AppShown, appId, tag } from './schemas.ts';

export const appRoutes = {
  list: route({
    id: 'list_apps',
    method: 'get',
    path: '/apps',
    tag,
    summary: 'List the apps that the signed-in account is a member of',
    admission: member('read:apps'),
    parameters: pageParameters,
    responses: page('A page of apps.', AppShown),
  }),
  create: route({
    id: 'create_app',
    method: 'post',
    path: '/apps',
    tag,
    summary: 'Create an app; the account becomes its owner',
    admission: member('write:apps'),
    parameters: [keyParameter],
    body: jsonBody(AppCreate, {
      client_name: 'Reader',
      redirect_uris: ['https://reader.example/callback'],
    }),
    responses: {
      201: {
        description: 'The app with its secret, which is shown once.',
        schema: AppMade,
        headers: createdHeaders,
      },
    },
    problems: [409],
  }),
  read: route({
    id: 'read_app',
    method: 'get',
    path: '/apps/{id}',
    tag,
    summary: 'Read an app',
    admission: member('read:apps'),
    parameters: [appId],
    responses: ok('The app.', AppShown),
  }),
  change: route({
    id: 'patch_app',
    method: 'patch',
    path: '/apps/{id}',
    tag,
    summary: 'Change an app; a verified app with a new name, logo, page or redirect URI becomes unverified',
    admission: member('write:apps'),
    parameters: [appId],
    body: mergePatchBody(AppMergePatch, { client_name: 'Better reader' }),
    responses: ok('The changed app.', AppShown),
    problems: [409],
  }),
  delete: route({
    id: 'delete_app',
    method: 'delete',
    path: '/apps/{id}',
    tag,
    summary: 'Delete an app with its grants, tokens and subscriptions (owners only)',
    admission: member('write:apps'),
    parameters: [appId],
    responses: { 204: { description: 'Deleted.' } },
  }),
};

/** Reads and creates apps; `registerChanges` changes and deletes them. */
export function registerAppRoutes(options: AppRoutesOptions): void {
  const { db, settings, checkMetadata } = options;
  registerChanges(options);

  serve(options, appRoutes.list, async ({ request, reply, caller }) => {
    const accountId = requireAccount(caller);
    const page = readPage(request);
    if (page.after !== null && !/^[\x21-\x7e]{1,2048}$/.test(page.after)) throw page.invalid();
    const { found, next } = await listApps(db, accountId, page.limit, page.after);
    const secrets = await listSecrets(
      db,
      found.map(({ client }) => client.id),
    );
    const show = (app: App) => representApp(app, secrets.get(app.client.id) ?? []);
    return sendPage(request, reply, page, found, show, ({ client }) => client.id, next);
  });

  serve(options, appRoutes.create, async ({ request, reply, caller: actor, body }) => {
    if (!actor.isAdmin) {
      requireAccount(actor);
      if (settings.creation === 'admins') {
        throw new Problem(403, 'Only administrators can create apps on this server.', {
          code: 'app-creation-restricted',
        });
      }
    }
    const metadata = withoutNulls(body);
    const id = newId();
    const description = checkMetadata(metadata, id, new Date());
    return sendIdempotent(options, request, reply, idempotencyNamespace(actor), (given) =>
      inTransaction(given, async (tx) => {
        await actAs(tx, actor);
        const made = await createApp(tx, id, actor, description);
        if (made === undefined) {
          throw new Problem(409, `An account can own at most ${appsMax} apps.`, { code: 'too-many-apps' });
        }
        const secrets = (await listSecrets(tx, [id])).get(id) ?? [];
        const shown = made.secret === null ? {} : { client_secret: made.secret, client_secret_expires_at: 0 };
        return createdResponse(appPath(id), { ...representApp(made.app, secrets), ...shown });
      }),
    );
  });

  serve(options, appRoutes.read, async ({ caller, params }) =>
    showApp(db, await requireApp(db, caller, params.id)),
  );
}

/** Maximum attempts to change an app that is changed concurrently. */
const changeAttemptsMax = 5;

function registerChanges(options: AppRoutesOptions): void {
  const { db, clients, checkMetadata } = options;

  serve(options, appRoutes.change, async ({ caller: actor, params, body }) => {
    for (let count = 0; count < changeAttemptsMax; count += 1) {
      const app = await requireApp(db, actor, params.id);
      requireManagedHere(app);
      const { id, createdAt } = app.client;
      const description = checkMetadata(applyAppPatch(body, app.client), id, createdAt);
      const isDone = await db.transaction().execute(async (tx) => {
        await requireLockedApp(tx, actor, id);
        await actAs(tx, actor);
        return changeApp(tx, app, description, actor.isAdmin);
      });
      if (!isDone) continue;
      clients.forget(id);
      return showApp(db, await requireApp(db, actor, id));
    }
    throw new Problem(409, 'The app is being changed by other requests. Try again.', { code: 'busy' });
  });

  serve(options, appRoutes.delete, async ({ reply, caller: actor, params }) => {
    const app = await requireApp(db, actor, params.id);
    requireOwner(app);
    requireManagedHere(app);
    const { id } = app.client;
    const isDeleted = await withDeliveryHold(
      db,
      { clientId: id, accountId: null, lane: null },
      async (tx) => {
        // The delivery hold takes time, so the actor may have lost the role.
        requireOwner(await requireLockedApp(tx, actor, id));
        await actAs(tx, actor);
        return deleteClient(tx, id);
      },
    );
    clients.forget(id);
    if (!isDeleted) throw appNotFound();
    return reply.code(204).send();
  });
}
