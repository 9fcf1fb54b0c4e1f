/**
 * Secrets of an app as its members see them; the value is returned only on creation. Writes `client_secrets`, as
 * src/clients does.
 */

import { sql } from 'kysely';
import { recordEntry } from '../audit/entry.ts';
import { addClientSecret, clientSecretsMax } from '../clients/client_secret.ts';
import { digest } from '../crypto/digest.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Actor } from '../grants/actor.ts';
import { lockApp } from './app.ts';

export interface AppSecret {
  id: string;
  createdAt: Date;
  /** Null for secrets that the operator or the app itself created. */
  createdBy: string | null;
  expiresAt: Date | null;
}

interface SecretRow {
  id: string;
  client_id: string;
  created_at: Date;
  created_by: string | null;
  expires_at: Date | null;
}

/** The live secrets of several apps by client id, oldest first. */
export async function listSecrets(
  db: Database | Transaction,
  clientIds: readonly string[],
): Promise<Map<string, AppSecret[]>> {
  const { rows } = await sql<SecretRow>`
    select id, client_id, created_at, created_by, expires_at from client_secrets
    where client_id = any(${clientIds}::text[]) and (expires_at is null or expires_at > now())
    order by created_at, id`.execute(db);
  const byApp = new Map<string, AppSecret[]>();
  for (const row of rows) byApp.set(row.client_id, [...(byApp.get(row.client_id) ?? []), toSecret(row)]);
  return byApp;
}

/** @returns undefined if the app has the maximum number of live secrets */
export async function addSecret(
  tx: Transaction,
  clientId: string,
  actor: Actor,
): Promise<(AppSecret & { secret: string }) | undefined> {
  await lockApp(tx, clientId);
  const live = (await listSecrets(tx, [clientId])).get(clientId) ?? [];
  if (live.length >= clientSecretsMax) return undefined;
  const secret = await addClientSecret(tx, clientId);
  const { rows } = await sql<SecretRow>`
    update client_secrets set created_by = ${actor.accountId}
    where client_id = ${clientId} and digest = ${digest(secret)} returning *`.execute(tx);
  const added = toSecret(rows[0] as SecretRow);
  await recordEntry(tx, { kind: 'app.secret_added', clientId, details: { secret: added.id } });
  return { ...added, secret };
}

/** Deletes a secret. The last one is kept, because the app could not authenticate without it. */
export async function deleteSecret(
  tx: Transaction,
  clientId: string,
  id: string,
): Promise<'deleted' | 'not-found' | 'last'> {
  await lockApp(tx, clientId);
  const live = (await listSecrets(tx, [clientId])).get(clientId) ?? [];
  if (!live.some((secret) => secret.id === id)) return 'not-found';
  if (live.length === 1) return 'last';
  await sql`delete from client_secrets where client_id = ${clientId} and id = ${id}`.execute(tx);
  await recordEntry(tx, { kind: 'app.secret_deleted', clientId, details: { secret: id } });
  return 'deleted';
}

function toSecret(row: SecretRow): AppSecret {
  return { id: row.id, createdAt: row.created_at, createdBy: row.created_by, expiresAt: row.expires_at };
}
