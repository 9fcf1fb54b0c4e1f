/**
 * `/apps`: the apps of the signed-in app developer. Members see only their own apps; other apps are 404. Administrators
 * see all apps.
 */

import { deleteClient } from '../../clients/client.ts';
import { newId } from '../../crypto/ids.ts';
import { inTransaction } from '../../database/database.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import { jsonPatchType } from '../../http/api.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { actAs, requireAccount } from '../actor.ts';
import { type App, appsMax, changeApp, createApp, listApps } from '../app.ts';
import { readAppPatch, readNewApp } from '../metadata.ts';
import { listSecrets } from '../secret.ts';
import {
  type ActorReader,
  type AppRoutesOptions,
  appNotFound,
  createActorReaders,
  createdResponse,
  type IdRoute,
  idempotencyNamespace,
  requireApp,
  requireLockedApp,
  requireManagedHere,
  requireOwner,
  showApp,
} from './app_access.ts';
import { appPath, representApp } from './representation.ts';

/** Maximum attempts to change an app that is changed concurrently. */
const changeAttemptsMax = 5;

/** Reads and creates apps; `registerChanges` changes and deletes them. */
export function registerAppRoutes(options: AppRoutesOptions): void {
  const { api, db, guard, settings, checkMetadata } = options;
  const { reader, writer } = createActorReaders(db, guard);
  registerChanges(options, writer);

  api.get('/apps', async (request, reply) => {
    const accountId = requireAccount(await reader(request));
    const page = readPage(request);
    if (page.after !== null && !/^[\x21-\x7e]{1,2048}$/.test(page.after)) throw page.invalid();
    const apps = await listApps(db, accountId, page.limit + 1, page.after);
    const secrets = await listSecrets(
      db,
      apps.map(({ client }) => client.id),
    );
    const show = (app: App) => representApp(app, secrets.get(app.client.id) ?? []);
    return sendPage(request, reply, page, apps, show, ({ client }) => client.id);
  });

  api.post('/apps', async (request, reply) => {
    const actor = await writer(request);
    if (!actor.isAdmin) {
      requireAccount(actor);
      if (settings.creation === 'admins') {
        throw new Problem(403, 'Only administrators can create apps on this server.', {
          code: 'app-creation-restricted',
        });
      }
    }
    const metadata = readNewApp(request.body);
    const id = newId();
    const description = checkMetadata(metadata, id, new Date());
    return sendIdempotent(options, request, reply, idempotencyNamespace(actor), (given) =>
      inTransaction(given, async (tx) => {
        await actAs(tx, actor);
        const made = await createApp(tx, id, actor.accountId, description);
        if (made === undefined) {
          throw new Problem(409, `An account can own at most ${appsMax} apps.`, { code: 'too-many-apps' });
        }
        const secrets = (await listSecrets(tx, [id])).get(id) ?? [];
        const shown = made.secret === null ? {} : { client_secret: made.secret, client_secret_expires_at: 0 };
        return createdResponse(appPath(id), { ...representApp(made.app, secrets), ...shown });
      }),
    );
  });

  api.get<IdRoute>('/apps/:id', async (request) => {
    const actor = await reader(request);
    return showApp(db, await requireApp(db, actor, request.params.id));
  });
}

function registerChanges(options: AppRoutesOptions, writer: ActorReader): void {
  const { api, db, clients, checkMetadata } = options;

  api.patch<IdRoute>('/apps/:id', async (request) => {
    const actor = await writer(request);
    if (request.headers['content-type']?.startsWith(jsonPatchType)) {
      throw new Problem(415, 'Changes of an app must be application/merge-patch+json.', {
        code: 'unsupported-media-type',
      });
    }
    for (let count = 0; count < changeAttemptsMax; count += 1) {
      const app = await requireApp(db, actor, request.params.id);
      requireManagedHere(app);
      const { id, createdAt } = app.client;
      const description = checkMetadata(readAppPatch(request.body, app.client), id, createdAt);
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

  api.delete<IdRoute>('/apps/:id', async (request, reply) => {
    const actor = await writer(request);
    const app = await requireApp(db, actor, request.params.id);
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
