/** What the routes of `/apps` share: authentication of the actor, access to one app, and representations of it. */

import { type App, findApp, lockApp } from '../../apps/app.ts';
import type { CheckMetadata } from '../../apps/metadata.ts';
import { listSecrets } from '../../apps/secret.ts';
import type { AppSettings } from '../../apps/settings.ts';
import type { ClientCache } from '../../clients/client_cache.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { type Actor, actorName } from '../../grants/actor.ts';
import type { JsonResponse } from '../../http/json_response.ts';
import { Problem } from '../../http/problem.ts';
import type { Mailing } from '../../notices/mailing.ts';
import type { RouteParts } from '../route.ts';
import { representApp } from './representation.ts';

export interface AppRoutesOptions extends RouteParts {
  settings: AppSettings;
  clients: ClientCache;
  checkMetadata: CheckMetadata;
  /** Encrypts responses that are stored for an idempotency key. */
  sealer: Sealer;
  mailing: Pick<Mailing, 'sendsMail'>;
}

export async function showApp(db: Database, app: App): Promise<Record<string, unknown>> {
  const { id } = app.client;
  return representApp(app, (await listSecrets(db, [id])).get(id) ?? []);
}

/** @throws Problem 404 if the app does not exist or the actor may not see it */
export async function requireApp(db: Database | Transaction, actor: Actor, id: string): Promise<App> {
  const app = await findApp(db, actor, id);
  if (app === undefined) throw appNotFound();
  return app;
}

/** Locks an app and reads it, so that the actor's role cannot change. @throws Problem 404 */
export async function requireLockedApp(tx: Transaction, actor: Actor, id: string): Promise<App> {
  const { client } = await requireApp(tx, actor, id);
  await lockApp(tx, client.id);
  return requireApp(tx, actor, id);
}

/** @throws Problem 403 for a developer */
export function requireOwner({ role }: App): void {
  if (role !== 'developer') return;
  throw new Problem(403, 'This request requires an owner of the app.', { code: 'owner-required' });
}

/** @throws Problem 403 for an app that is not managed over `/apps` */
export function requireManagedHere({ client }: App): void {
  if (client.origin === 'account') return;
  const where = {
    operator: 'by the commands of the operator',
    registration: 'at its registration endpoint (RFC 7592)',
    document: 'in its metadata document',
    account: '',
  }[client.origin];
  throw new Problem(403, `This app is managed ${where}.`, { code: 'app-managed-elsewhere' });
}

export function appNotFound(): Problem {
  return new Problem(404, 'App not found.');
}

/** Namespace of the actor's idempotency keys. */
export function idempotencyNamespace(actor: Actor): string {
  return `apps ${actorName(actor)} ${actor.clientId}`;
}

/** The response to a request that created something. */
export function createdResponse(location: string, body: Record<string, unknown>): JsonResponse {
  return { status: 201, headers: { location }, body: JSON.stringify(body) };
}
