/** `/apps/<id>/logo`: members upload, replace and remove the logo of an app. It is shown at `/logos/<digest>` (src/web). */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Transaction } from '../../database/database.ts';
import { mediaType } from '../../http/media_types.ts';
import { Problem } from '../../http/problem.ts';
import { type Actor, actAs, actorOf } from '../actor.ts';
import { type Image, type ImageType, imageTypes, readImage } from '../images/image.ts';
import { changeLogo, logoBytesMax } from '../logo.ts';
import {
  type AppRoutesOptions,
  type IdRoute,
  requireApp,
  requireLocked,
  requireManaged,
  showApp,
} from './app_routes.ts';

const path = '/apps/:id/logo';

export function registerLogoRoutes(
  options: Pick<AppRoutesOptions, 'api' | 'db' | 'guard' | 'clients'>,
): void {
  const { api, db, guard, clients } = options;
  const writer = async (request: FastifyRequest) => actorOf(db, await guard(request, 'write:apps'));
  takeImages(api);

  api.put<IdRoute>(path, { bodyLimit: logoBytesMax, config: { takes: imageTypes } }, async (request) => {
    const actor = await writer(request);
    // Who may not see the app learns nothing of the image either.
    requireManaged(await requireApp(db, actor, request.params.id));
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

/** The role is read while nobody else changes it. */
async function change(tx: Transaction, actor: Actor, id: string, image: Image | null): Promise<void> {
  const app = await requireLocked(tx, actor, id);
  requireManaged(app);
  await actAs(tx, actor);
  await changeLogo(tx, app.client.id, image, actor.isAdmin);
}

/** Bodies of these types come as bytes; routes that do not take them refuse them before. */
function takeImages(api: FastifyInstance): void {
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
    Buffer.isBuffer(body) && body.length > 0 ? readImage(type, body) : 'The request has no image in it.';
  if (typeof image === 'string') throw new Problem(422, image, { code: 'invalid-image' });
  return image;
}
