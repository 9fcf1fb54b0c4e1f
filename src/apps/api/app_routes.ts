/**
 * `/apps`: the apps of the signed-in app developer. A member sees their own apps and nobody else's; what one may not
 * see is not there (404). An administrator sees every app.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { deleteClient } from '../../clients/client.ts';
import type { ClientCache } from '../../clients/client_cache.ts';
import { isId, newId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { withDeliveryHold } from '../../grants/delivery_hold.ts';
import type { Guard } from '../../grants/principal.ts';
import { jsonPatchType } from '../../http/api.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import type { JsonResponse } from '../../http/json_response.ts';
import { readPage, sendPage } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import { type Actor, actAs, actorOf, nameOf, requireAccount } from '../actor.ts';
import { type App, appsMax, changeApp, createApp, findApp, listApps, lockApp } from '../app.ts';
import { type CheckMetadata, readAppPatch, readNewApp } from '../metadata.ts';
import { addSecret, deleteSecret, listSecrets } from '../secret.ts';
import type { AppSettings } from '../settings.ts';
import { appPath, representApp, representSecret } from './representation.ts';

export interface AppRoutesOptions {
  api: FastifyInstance;
  db: Database;
  guard: Guard;
  settings: AppSettings;
  clients: ClientCache;
  checkMetadata: CheckMetadata;
  /** For responses that are kept for an idempotency key. */
  sealer: Sealer;
}

export interface IdRoute {
  Params: { id: string };
}

interface SecretRoute {
  Params: { id: string; secret: string };
}

/** Times that a change is made anew where another one came between reading and writing. */
const changeTriesMax = 5;

export function registerAppRoutes(options: AppRoutesOptions): void {
  const { api, db, guard, settings, clients, checkMetadata } = options;
  const reader = async (request: FastifyRequest) => actorOf(db, await guard(request, 'read:apps'));
  const writer = async (request: FastifyRequest) => actorOf(db, await guard(request, 'write:apps'));

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
        throw new Problem(403, 'Administrators alone make apps at this server.', {
          code: 'app-creation-restricted',
        });
      }
    }
    const metadata = readNewApp(request.body);
    const id = newId();
    const description = checkMetadata(metadata, id, new Date());
    return sendIdempotent(options, request, reply, keyOwner(actor), (given) =>
      inTransaction(given, async (tx) => {
        await actAs(tx, actor);
        const made = await createApp(tx, id, actor.accountId, description);
        if (made === undefined) {
          throw new Problem(409, `An account owns ${appsMax} apps at most.`, { code: 'too-many-apps' });
        }
        const secrets = (await listSecrets(tx, [id])).get(id) ?? [];
        const shown = made.secret === null ? {} : { client_secret: made.secret, client_secret_expires_at: 0 };
        return madeAnswer(appPath(id), { ...representApp(made.app, secrets), ...shown });
      }),
    );
  });

  api.get<IdRoute>('/apps/:id', async (request) => {
    const actor = await reader(request);
    return showApp(db, await requireApp(db, actor, request.params.id));
  });

  api.patch<IdRoute>('/apps/:id', async (request) => {
    const actor = await writer(request);
    if (request.headers['content-type']?.startsWith(jsonPatchType)) {
      throw new Problem(415, 'An app is changed by application/merge-patch+json.', {
        code: 'unsupported-media-type',
      });
    }
    for (let count = 0; count < changeTriesMax; count += 1) {
      const app = await requireApp(db, actor, request.params.id);
      requireManaged(app);
      const { id, createdAt } = app.client;
      const description = checkMetadata(readAppPatch(request.body, app.client), id, createdAt);
      const isDone = await db.transaction().execute(async (tx) => {
        await requireLocked(tx, actor, id);
        await actAs(tx, actor);
        return changeApp(tx, app, description, actor.isAdmin);
      });
      if (!isDone) continue;
      clients.forget(id);
      return showApp(db, await requireApp(db, actor, id));
    }
    throw new Problem(409, 'The app is being changed by others: try again.', { code: 'busy' });
  });

  api.delete<IdRoute>('/apps/:id', async (request, reply) => {
    const actor = await writer(request);
    const app = await requireApp(db, actor, request.params.id);
    requireOwner(app);
    requireManaged(app);
    const { id } = app.client;
    const isDeleted = await withDeliveryHold(
      db,
      { clientId: id, accountId: null, lane: null },
      async (tx) => {
        // The delivery hold takes time: the actor may no longer be an owner.
        requireOwner(await requireLocked(tx, actor, id));
        await actAs(tx, actor);
        return deleteClient(tx, id);
      },
    );
    clients.forget(id);
    if (!isDeleted) throw appNotFound();
    return reply.code(204).send();
  });

  api.post<IdRoute>('/apps/:id/secrets', async (request, reply) => {
    const actor = await writer(request);
    refuseBody(request);
    // Also of a secret that was made before, and is asked for again.
    await requireApp(db, actor, request.params.id);
    const sent = await sendIdempotent(options, request, reply, keyOwner(actor), (given) =>
      inTransaction(given, async (tx) => {
        const { client } = await requireLocked(tx, actor, request.params.id);
        if (!client.authMethod.startsWith('client_secret_')) {
          throw new Problem(409, `An app that authenticates by ${client.authMethod} has no secrets.`, {
            code: 'no-client-secret',
          });
        }
        await actAs(tx, actor);
        const added = await addSecret(tx, client.id, actor);
        if (added === undefined) {
          throw new Problem(409, 'Two secrets are live: delete one first.', { code: 'too-many-secrets' });
        }
        const { _links, ...shown } = representSecret(client.id, added);
        const body = { ...shown, client_secret: added.secret, client_secret_expires_at: 0, _links };
        return madeAnswer(`${appPath(client.id)}/secrets/${added.id}`, body);
      }),
    );
    clients.forget(request.params.id);
    return sent;
  });

  api.delete<SecretRoute>('/apps/:id/secrets/:secret', async (request, reply) => {
    const actor = await writer(request);
    const { client } = await requireApp(db, actor, request.params.id);
    const { secret } = request.params;
    const outcome = isId(secret)
      ? await db.transaction().execute(async (tx) => {
          await requireLocked(tx, actor, client.id);
          await actAs(tx, actor);
          return deleteSecret(tx, client.id, secret);
        })
      : 'not-found';
    if (outcome === 'not-found') throw new Problem(404, 'There is no such secret.');
    if (outcome === 'last') {
      throw new Problem(409, 'An app keeps its last secret: make another one first.', {
        code: 'last-secret',
      });
    }
    clients.forget(client.id);
    return reply.code(204).send();
  });
}

export async function showApp(db: Database, app: App): Promise<Record<string, unknown>> {
  const { id } = app.client;
  return representApp(app, (await listSecrets(db, [id])).get(id) ?? []);
}

/** @throws Problem 404 for what is not there or not the actor's to see */
export async function requireApp(db: Database | Transaction, actor: Actor, id: string): Promise<App> {
  const app = await findApp(db, actor, id);
  if (app === undefined) throw appNotFound();
  return app;
}

/** The role is read while nobody else changes it. @throws Problem 404 */
export async function requireLocked(tx: Transaction, actor: Actor, id: string): Promise<App> {
  const { client } = await requireApp(tx, actor, id);
  await lockApp(tx, client.id);
  return requireApp(tx, actor, id);
}

/** @throws Problem 403 for a developer */
export function requireOwner({ role }: App): void {
  if (role !== 'developer') return;
  throw new Problem(403, 'Owners of the app alone may do that.', { code: 'owner-required' });
}

/** @throws Problem 403 for an app that is changed in another way */
export function requireManaged({ client }: App): void {
  if (client.origin === 'account') return;
  const where = {
    operator: 'by the operator’s commands',
    registration: 'at its registration endpoint (RFC 7592)',
    document: 'in its metadata document',
    account: '',
  }[client.origin];
  throw new Problem(403, `This app is changed ${where}.`, { code: 'app-managed-elsewhere' });
}

export function appNotFound(): Problem {
  return new Problem(404, 'There is no such app.');
}

/** Whose idempotency keys they are. */
export function keyOwner(actor: Actor): string {
  return `apps ${nameOf(actor)} ${actor.clientId}`;
}

/** A response with something that is shown once. */
function madeAnswer(location: string, body: Record<string, unknown>): JsonResponse {
  return { status: 201, headers: { location, 'cache-control': 'no-store' }, body: JSON.stringify(body) };
}

/** @throws Problem 422 where there is more than nothing, or an empty object */
export function refuseBody({ body }: FastifyRequest): void {
  if (body === undefined) return;
  const isObject = typeof body === 'object' && body !== null && !Array.isArray(body);
  if (isObject && Object.keys(body).length === 0) return;
  throw new Problem(422, 'The request takes no body.', { code: 'invalid-body' });
}
