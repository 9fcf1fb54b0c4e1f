/** `/apps/<id>/logo`: members upload, replace and remove the logo of an app. `/logos/<digest>` (src/web) serves it. */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import Type from 'typebox';
import { type Image, type ImageType, imageSideMax, imageTypes, readImage } from '../../apps/images/image.ts';
import { changeLogo, logoBytesMax } from '../../apps/logo.ts';
import type { Transaction } from '../../database/database.ts';
import { type Actor, actAs } from '../../grants/actor.ts';
import { addBodyParser } from '../../http/body_limit.ts';
import { ok } from '../../http/describe.ts';
import { mediaType } from '../../http/media_types.ts';
import { Problem } from '../../http/problem.ts';
import { named } from '../../http/schema.ts';
import { member } from '../admission.ts';
import { route, serve } from '../route.ts';
import {
  type AppRoutesOptions,
  requireApp,
  requireLockedApp,
  requireManagedHere,
  showApp,
} from './app_access.ts';
import { AppShown, appId, tag } from './schemas.ts';

const Logo = named(
  'LogoImage',
  Type.String({
    format: 'binary',
    description: `A PNG, JPEG or WebP image without animation: at most ${logoBytesMax} bytes, and ${imageSideMax} by ${imageSideMax} pixels. Metadata and color profiles are removed.`,
  }),
);

export const logoRoutes = {
  put: route({
    id: 'put_app_logo',
    method: 'put',
    path: '/apps/{id}/logo',
    tag,
    summary: 'Upload or replace the logo of an app; a verified app becomes unverified',
    description:
      'The link `logo` of the app is the URL of the logo. A different image has a different URL, so responses may be cached forever. A suspended app has no logo link.',
    admission: member('write:apps'),
    parameters: [appId],
    body: { required: true, types: imageTypes, schema: Logo, isRaw: true, bytesMax: logoBytesMax },
    responses: ok('The changed app.', AppShown),
  }),
  delete: route({
    id: 'delete_app_logo',
    method: 'delete',
    path: '/apps/{id}/logo',
    tag,
    summary: 'Remove the logo of an app; a verified app becomes unverified',
    admission: member('write:apps'),
    parameters: [appId],
    responses: { 204: { description: 'Removed.' } },
  }),
};

export function registerLogoRoutes(options: AppRoutesOptions): void {
  const { api, db, clients } = options;
  parseImages(api);

  serve(options, logoRoutes.put, async ({ request, caller, params: { id } }) => {
    // Before the image is parsed, so that non-members get 404 in any case.
    requireManagedHere(await requireApp(db, caller, id));
    const image = readUpload(request);
    await db.transaction().execute((tx) => change(tx, caller, id, image));
    clients.forget(id);
    return showApp(db, await requireApp(db, caller, id));
  });

  serve(options, logoRoutes.delete, async ({ reply, caller, params: { id } }) => {
    await db.transaction().execute((tx) => change(tx, caller, id, null));
    clients.forget(id);
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

/** Reads bodies of image types as they are. Routes that do not accept images reject them earlier. */
function parseImages(api: FastifyInstance): void {
  for (const type of imageTypes) addBodyParser(api, type, (bytes) => bytes);
}

/** @throws Problem 422 */
function readUpload({ body, headers }: FastifyRequest): Image {
  const type = mediaType(headers['content-type']) as ImageType;
  const image =
    Buffer.isBuffer(body) && body.length > 0 ? readImage(type, body) : 'The request body contains no image.';
  if (typeof image === 'string') throw new Problem(422, image, { code: 'invalid-image' });
  return image;
}
