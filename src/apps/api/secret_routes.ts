/**
 * `/apps/<id>/secrets`: members create and delete the secrets of an app. Whoever has a secret is the app, so clients of the
 * operator, which can have the rights of machines, get theirs by commands only.
 */

import { isId } from '../../crypto/ids.ts';
import { inTransaction } from '../../database/database.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import { Problem } from '../../http/problem.ts';
import { actAs } from '../actor.ts';
import { addSecret, deleteSecret } from '../secret.ts';
import {
  type AppRoutesOptions,
  createActorReaders,
  createdResponse,
  type IdRoute,
  idempotencyNamespace,
  requireApp,
  requireEmptyBody,
  requireLockedApp,
  requireManagedHere,
} from './app_access.ts';
import { appPath, representSecret } from './representation.ts';

interface SecretRoute {
  Params: { id: string; secret: string };
}

export function registerSecretRoutes(
  options: Pick<AppRoutesOptions, 'api' | 'db' | 'guard' | 'clients' | 'sealer'>,
): void {
  const { api, db, guard, clients } = options;
  const { writer } = createActorReaders(db, guard);

  api.post<IdRoute>('/apps/:id/secrets', async (request, reply) => {
    const actor = await writer(request);
    requireEmptyBody(request);
    // Checked here too, because a repeated request with the same idempotency key does not run the callback.
    requireManagedHere(await requireApp(db, actor, request.params.id));
    const sent = await sendIdempotent(options, request, reply, idempotencyNamespace(actor), (given) =>
      inTransaction(given, async (tx) => {
        const { client } = await requireLockedApp(tx, actor, request.params.id);
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
    clients.forget(request.params.id);
    return sent;
  });

  api.delete<SecretRoute>('/apps/:id/secrets/:secret', async (request, reply) => {
    const actor = await writer(request);
    const app = await requireApp(db, actor, request.params.id);
    requireManagedHere(app);
    const { client } = app;
    const { secret } = request.params;
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
