/** `/apps/<id>/logo`: members upload, replace and remove the logo of an app. `/logos/<digest>` (src/web) serves it. */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Transaction } from '../../database/database.ts';
import { mediaType } from '../../http/media_types.ts';
import { Problem } from '../../http/problem.ts';
import { type Actor, actAs } from '../actor.ts';
import { type Image, type ImageType, imageTypes, readImage } from '../images/image.ts';
import { changeLogo, logoBytesMax } from '../logo.ts';
import {
  type AppRoutesOptions,
  createActorReaders,
  type IdRoute,
  requireApp,
  requireLockedApp,
  requireManagedHere,
  showApp,
} from './app_access.ts';

const path = '/apps/:id/logo';

export function registerLogoRoutes(
  options: Pick<AppRoutesOptions, 'api' | 'db' | 'guard' | 'clients'>,
): void {
  const { api, db, guard, clients } = options;
  const { writer } = createActorReaders(db, guard);
  parseImages(api);

  api.put<IdRoute>(path, { bodyLimit: logoBytesMax, config: { takes: imageTypes } }, async (request) => {
    const actor = await writer(request);
    // Before the image is parsed, so that non-members get 404 in any case.
    requireManagedHere(await requireApp(db, actor, request.params.id));
    const image = readUpload(request);
    await db.transaction().execute((tx) => change(tx, actor, request.params.id, image));
    clients.forget(request.params.id);
    return showApp(db, await requireApp(db, actor, request.params.id));
  });

  api.delete<IdRoute>(path, async (request, reply) => {
    const actor = await writer(request);
    await db.transaction().execute((tx) => change(tx, actor, request.params.id, null));
    clients.forget(request.params.id);
    return reply.code(204).send();
  });
}

/** Changes the logo while the app is locked, so that the actor's role cannot change. */
async function change(tx: Transaction, actor: Actor, id: string, image: Image | null): Promise<void> {
  const app = await requireLockedApp(tx, actor, id);
  requireManagedHere(app);
  await actAs(tx, actor);
  await changeLogo(tx, app.client.id, image, actor.isAdmin);
}

/** Parses bodies of image types as buffers. Routes that do not accept images reject them earlier. */
function parseImages(api: FastifyInstance): void {
  for (const type of imageTypes) {
    api.addContentTypeParser(
      type,
      { parseAs: 'buffer', bodyLimit: logoBytesMax },
      async (_request: FastifyRequest, body: Buffer) => body,
    );
  }
}

/** @throws Problem 422 */
function readUpload({ body, headers }: FastifyRequest): Image {
  const type = mediaType(headers['content-type']) as ImageType;
  const image =
    Buffer.isBuffer(body) && body.length > 0 ? readImage(type, body) : 'The request body contains no image.';
  if (typeof image === 'string') throw new Problem(422, image, { code: 'invalid-image' });
  return image;
}
