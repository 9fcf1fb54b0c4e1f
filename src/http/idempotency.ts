/**
 * Idempotency keys: a POST that is sent again with the same `Idempotency-Key` is answered again, not done again.
 * Owns the table `idempotency_keys`.
 *
 * The answer is kept in the transaction that does the work: either both are there or neither, whatever ends the
 * process in between. Only answers of success are kept; what was refused changed nothing and may be tried again.
 *
 *   free → (lock) running → (commit) answered → (24 h) free
 */

import { createHash } from 'node:crypto';
import { sql } from 'kysely';
import type { Sealer } from '../crypto/sealing.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Answer } from './answer.ts';
import { Problem } from './problem.ts';

/** Hours for which an answer is kept. */
export const keptHours = 24;
/** Characters of a key at most. */
export const keyCharactersMax = 255;
/** Visible ASCII, with spaces inside. */
export const keyPattern = '^[!-~](?:[ -~]*[!-~])?$';
const keyForm = new RegExp(keyPattern);

export interface KeyedRequest {
  /** The value of `Idempotency-Key`. */
  key: string;
  /** Whose key it is: account and client of the token. */
  owner: string;
  digest: Buffer;
}

/**
 * @param header the value of `Idempotency-Key`
 * @param request method, URL and body: the same key must come with the same
 * @returns undefined without a key
 * @throws Problem 400 for a key that is too long or not visible ASCII
 */
export function readIdempotencyKey(
  header: string | string[] | undefined,
  owner: string,
  request: { method: string; url: string; body: unknown },
): KeyedRequest | undefined {
  if (header === undefined) return undefined;
  const key = String(header);
  if (!keyForm.test(key) || key.length > keyCharactersMax) {
    throw new Problem(400, `Idempotency-Key may be 1 to ${keyCharactersMax} visible ASCII characters.`, {
      code: 'invalid-idempotency-key',
    });
  }
  const { method, url, body } = request;
  const digest = createHash('sha256')
    .update(JSON.stringify([method, url, body ?? null]))
    .digest();
  return { key, owner, digest };
}

/**
 * Does the work, or gives the answer that it had before.
 * @param sealer where the answer holds a secret: how it is kept
 * @throws Problem 409 while another request with the key is being worked on, 422 where the key came with another
 *   request before
 */
export async function answerOnce(
  tx: Transaction,
  { key, owner, digest }: KeyedRequest,
  work: (tx: Transaction) => Promise<Answer>,
  sealer?: Sealer,
): Promise<Answer> {
  const context = `idempotency ${owner} ${key}`;
  // The lock ends with the transaction, and with the connection of a process that died.
  const { rows: locks } = await sql<{ isFree: boolean }>`
    select pg_try_advisory_xact_lock(hashtextextended(${`${owner} ${key}`}, 50)) as "isFree"`.execute(tx);
  if (locks[0]?.isFree !== true) {
    throw new Problem(409, 'The first request with this Idempotency-Key is still being worked on.', {
      code: 'idempotency-key-in-use',
      headers: { 'retry-after': '1' },
    });
  }
  const { rows } = await sql<Answer & { isSame: boolean }>`
    select status, headers, body, request_digest = ${digest} as "isSame" from idempotency_keys
    where owner = ${owner} and key = ${key} and created_at > now() - make_interval(hours => ${keptHours})`.execute(
    tx,
  );
  const before = rows[0];
  if (before?.isSame === false) {
    throw new Problem(422, 'This Idempotency-Key came with another request before.', {
      code: 'idempotency-key-reused',
    });
  }
  if (before !== undefined) {
    const { status, headers } = before;
    const body =
      before.body === null || sealer === undefined
        ? before.body
        : sealer.open(Buffer.from(before.body, 'base64'), context).toString();
    return { status, headers: { ...headers, 'idempotency-replayed': 'true' }, body };
  }
  const answer = await work(tx);
  const kept =
    answer.body === null || sealer === undefined
      ? answer.body
      : sealer.seal(answer.body, context).toString('base64');
  await sql`
    insert into idempotency_keys (owner, key, request_digest, status, headers, body)
    values (${owner}, ${key}, ${digest}, ${answer.status}, ${JSON.stringify(answer.headers)}, ${kept})
    on conflict (owner, key) do update
      set request_digest = excluded.request_digest, status = excluded.status, headers = excluded.headers,
          body = excluded.body, created_at = excluded.created_at`.execute(tx);
  return answer;
}

/** Keys forgotten in one statement at most. */
const sweepRowsMax = 10_000;

/** Forgets what has been kept long enough. */
export async function sweepIdempotencyKeys(db: Database): Promise<void> {
  await sql`
    delete from idempotency_keys where ctid = any(array(
      select ctid from idempotency_keys where created_at <= now() - make_interval(hours => ${keptHours})
      limit ${sweepRowsMax}))`.execute(db);
}
