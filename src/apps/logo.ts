/**
 * Uploaded logos of apps. Owns the table `app_logos`, and writes `clients.logo`. A logo is served under a digest of the
 * app, type and content, so that every image has its own immutable URL.
 */

import { createHash } from 'node:crypto';
import { sql } from 'kysely';
import { recordEntry } from '../audit/entry.ts';
import { verifiedAt } from '../clients/client.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Image, ImageType } from './images/image.ts';

/** Maximum size of a logo in bytes. */
export const logoBytesMax = 65_536;

export interface Logo {
  type: ImageType;
  content: Buffer;
}

/**
 * Replaces or removes the logo of an app. The same logo again changes nothing.
 * @param isVerifying true for administrators, who verify what they change. Any other change ends the verification.
 */
export async function changeLogo(
  tx: Transaction,
  clientId: string,
  image: Image | null,
  isVerifying: boolean,
): Promise<void> {
  const digest = image === null ? null : digestOf(clientId, image);
  const { rows } = await sql`
    update clients set
      logo = ${digest}, updated_at = now(), verified_at = ${verifiedAt(isVerifying)}
    where id = ${clientId} and origin = 'account' and logo is distinct from ${digest}
    returning id`.execute(tx);
  if (rows.length === 0) return;
  if (image === null) {
    await sql`delete from app_logos where client_id = ${clientId}`.execute(tx);
    await recordEntry(tx, { kind: 'app.logo_removed', clientId });
    return;
  }
  const { type, content, width, height } = image;
  await sql`
    insert into app_logos (client_id, digest, type, content)
    values (${clientId}, ${digest}, ${type}, ${content})
    on conflict (client_id) do update
      set digest = excluded.digest, type = excluded.type, content = excluded.content, created_at = now()`.execute(
    tx,
  );
  const details = { logo: digest, type, bytes: content.length, width, height };
  await recordEntry(tx, { kind: 'app.logo_changed', clientId, details });
}

/** Finds a logo, unless its app is suspended or disabled. */
export async function findLogo(db: Database, digest: string): Promise<Logo | undefined> {
  const { rows } = await sql<Logo>`
    select l.type, l.content from app_logos l
    join clients c on c.id = l.client_id
    where l.digest = ${digest} and not c.is_stopped`.execute(db);
  return rows[0];
}

function digestOf(clientId: string, { type, content }: Image): string {
  return createHash('sha256')
    .update(`${JSON.stringify([clientId, type])}\n`)
    .update(content)
    .digest('base64url');
}
