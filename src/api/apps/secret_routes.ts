/**
 * `/apps/<id>/secrets`: members create and delete the secrets of an app. Whoever has a secret is the app, so clients of the
 * operator, which can have the rights of machines, get theirs by commands only.
 */

import { addSecret, deleteSecret } from '../../apps/secret.ts';
import { isId } from '../../crypto/ids.ts';
import { inTransaction } from '../../database/database.ts';
import { actAs } from '../../grants/actor.ts';
import { createdHeaders, emptyBody, keyParameter, pathParameter } from '../../http/describe.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { Problem } from '../../http/problem.ts';
import { Id } from '../../http/schema.ts';
import { member } from '../admission.ts';
import { route, serve } from '../route.ts';
import {
  type AppRoutesOptions,
  createdResponse,
  idempotencyNamespace,
  requireApp,
  requireLockedApp,
  requireManagedHere,
} from './app_access.ts';
import { appPath, representSecret } from './representation.ts';
import { AppSecretMade, appId, tag } from './schemas.ts';

export const secretRoutes = {
  create: route({
    id: 'create_app_secret',
    method: 'post',
    path: '/apps/{id}/secrets',
    tag,
    summary: 'Create a secret of an app that was created here; at most two can be live',
    admission: member('write:apps'),
    parameters: [appId, keyParameter],
    body: emptyBody,
    responses: {
      201: {
        description: 'The secret, which is shown once.',
        schema: AppSecretMade,
        headers: createdHeaders,
      },
    },
    problems: [409],
  }),
  delete: route({
    id: 'delete_app_secret',
    method: 'delete',
    path: '/apps/{id}/secrets/{secret}',
    tag,
    summary: 'Delete a secret of an app that was created here, except the last one',
    admission: member('write:apps'),
    parameters: [appId, pathParameter('secret', 'The id of the secret.', Id())],
    responses: { 204: { description: 'Deleted. The secret no longer works.' } },
    problems: [409],
  }),
};

export function registerSecretRoutes(options: AppRoutesOptions): void {
  const { db, clients } = options;

  serve(options, secretRoutes.create, async ({ request, reply, caller: actor, params }) => {
    // Checked here too, because a repeated request with the same idempotency key does not run the callback.
    requireManagedHere(await requireApp(db, actor, params.id));
    const sent = await sendIdempotent(options, request, reply, idempotencyNamespace(actor), (given) =>
      inTransaction(given, async (tx) => {
        const { client } = await requireLockedApp(tx, actor, params.id);
        if (!client.authMethod.startsWith('client_secret_')) {
          throw new Problem(
            409,
            `An app with the authentication method ${client.authMethod} has no secrets.`,
            {
              code: 'no-client-secret',
            },
          );
        }
        await actAs(tx, actor);
        const added = await addSecret(tx, client.id, actor);
        if (added === undefined) {
          throw new Problem(409, 'An app can have at most two live secrets. Delete one first.', {
            code: 'too-many-secrets',
          });
        }
        const { _links, ...shown } = representSecret(client.id, added);
        const body = { ...shown, client_secret: added.secret, client_secret_expires_at: 0, _links };
        return createdResponse(`${appPath(client.id)}/secrets/${added.id}`, body);
      }),
    );
    clients.forget(params.id);
    return sent;
  });

  serve(options, secretRoutes.delete, async ({ reply, caller: actor, params }) => {
    const app = await requireApp(db, actor, params.id);
    requireManagedHere(app);
    const { client } = app;
    const { secret } = params;
    const outcome = isId(secret)
      ? await db.transaction().execute(async (tx) => {
          await requireLockedApp(tx, actor, client.id);
          await actAs(tx, actor);
          return deleteSecret(tx, client.id, secret);
        })
      : 'not-found';
    if (outcome === 'not-found') throw new Problem(404, 'Secret not found.');
    if (outcome === 'last') {
      throw new Problem(409, 'The last secret of an app cannot be deleted. Create another one first.', {
        code: 'last-secret',
      });
    }
    clients.forget(client.id);
    return reply.code(204).send();
  });
}
