/**
 * Idempotency keys: a POST that is repeated with the same `Idempotency-Key` gets the stored response and runs no second
 * time. Owns the table `idempotency_keys`.
 *
 * The transaction that does the work also stores the response, so a crash leaves both or neither. Only successful responses
 * are stored. A rejected request changed nothing and can be retried with the same key.
 *
 *   free → (lock) running → (commit) stored → (24 h) free
 */

import { createHash } from 'node:crypto';
import { sql } from 'kysely';
import type { Sealer } from '../crypto/sealing.ts';
import { deleteBatches } from '../database/batches.ts';
import type { Database, Transaction } from '../database/database.ts';
import { steadyNow } from '../database/steady_clock.ts';
import type { JsonResponse } from './json_response.ts';
import { Problem } from './problem.ts';

/** Hours for which a response is stored. */
const keptHours = 24;
export const keyCharactersMax = 255;
/** Visible ASCII; spaces only between other characters. */
export const keyPattern = '^[!-~](?:[ -~]*[!-~])?$';
const keyForm = new RegExp(keyPattern);

export interface KeyedRequest {
  /** The value of `Idempotency-Key`. */
  key: string;
  /** Account and client of the token. Each owner has its own keys. */
  owner: string;
  digest: Buffer;
}

/**
 * @param header the value of `Idempotency-Key`
 * @param request a repeated key must have the same method, URL and body
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
    throw new Problem(400, `Idempotency-Key must have 1 to ${keyCharactersMax} visible ASCII characters.`, {
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
 * Does the work, or returns the stored response.
 * @param sealer encrypts the stored response, for responses that contain secrets
 * @throws Problem 409 while another request with the key is in flight, 422 when the key was used for a different request
 */
export async function runIdempotent(
  tx: Transaction,
  request: KeyedRequest,
  work: (tx: Transaction) => Promise<JsonResponse>,
  sealer?: Sealer,
): Promise<JsonResponse> {
  const [before] = await claimKeys(tx, [request], sealer);
  if (before instanceof Problem) throw before;
  if (before !== undefined) return before;
  const response = await work(tx);
  await storeResponses(tx, [{ request, response }], sealer);
  return response;
}

/**
 * Looks up the keys of several requests that share a transaction, and locks the keys until it ends.
 * @returns for each request its stored response, a Problem that rejects it, or undefined if its work must be done
 */
export async function claimKeys(
  tx: Transaction,
  requests: readonly KeyedRequest[],
  sealer?: Sealer,
): Promise<(JsonResponse | Problem | undefined)[]> {
  const names = requests.map(nameOf);
  // PostgreSQL releases the locks at the end of the transaction, also when the connection breaks. Every role of the database can
  // take advisory locks, but the salt makes these unpredictable.
  const { rows: locks } = await sql<{ isFree: boolean }>`
    select pg_try_advisory_xact_lock(hashtextextended(salt || name, 50)) as "isFree"
    from unnest(${names}::text[]) with ordinality as given (name, place), lock_salt order by place`.execute(
    tx,
  );
  // A response may be large, and a small request with its key would cost as much.
  const { rows } = await sql<JsonResponse & { place: number; isSame: boolean }>`
    select given.place::int, k.request_digest = decode(given.digest, 'hex') as "isSame", k.status, k.headers,
      case when k.request_digest = decode(given.digest, 'hex') then k.body end as body
    from unnest(
      ${requests.map(({ owner }) => owner)}::text[],
      ${requests.map(({ key }) => key)}::text[],
      ${requests.map(({ digest }) => digest.toString('hex'))}::text[]
    ) with ordinality as given (owner, key, digest, place)
    join idempotency_keys k on k.owner = given.owner and k.key = given.key
    where k.created_at > now() - make_interval(hours => ${keptHours})`.execute(tx);
  const before = new Map(rows.map((row) => [row.place - 1, row]));
  const claimed = new Set<string>();
  return requests.map((request, index) => {
    const name = names[index] as string;
    const kept = before.get(index);
    // A stored response is final, whoever holds the lock.
    if (kept !== undefined) return kept.isSame ? replay(request, kept, sealer) : reused();
    // The lock excludes other transactions, but not a second request in this one.
    if (locks[index]?.isFree !== true || claimed.has(name)) return stillRunning();
    claimed.add(name);
    return undefined;
  });
}

/** Unambiguous, because an owner has exactly two parts without spaces. */
function nameOf({ owner, key }: Pick<KeyedRequest, 'owner' | 'key'>): string {
  return `${owner} ${key}`;
}

function stillRunning(): Problem {
  return new Problem(409, 'The first request with this Idempotency-Key is still in progress.', {
    code: 'idempotency-key-in-use',
    headers: { 'retry-after': '1' },
  });
}

function reused(): Problem {
  return new Problem(422, 'This Idempotency-Key was used for a different request.', {
    code: 'idempotency-key-reused',
  });
}

function replay(
  request: KeyedRequest,
  { status, headers, body }: JsonResponse,
  sealer?: Sealer,
): JsonResponse {
  const text =
    body === null || sealer === undefined
      ? body
      : sealer.open(Buffer.from(body, 'base64'), contextOf(request)).toString();
  return { status, headers: { ...headers, 'idempotency-replayed': 'true' }, body: text };
}

/** Stores responses, in the transaction that did the work. */
export async function storeResponses(
  tx: Transaction,
  completed: readonly { request: KeyedRequest; response: JsonResponse }[],
  sealer?: Sealer,
): Promise<void> {
  const bodies = completed.map(({ request, response: { body } }) =>
    body === null || sealer === undefined ? body : sealer.seal(body, contextOf(request)).toString('base64'),
  );
  await sql`
    insert into idempotency_keys (owner, key, request_digest, status, headers, body)
    select owner, key, decode(digest, 'hex'), status, headers::jsonb, body
    from unnest(
      ${completed.map(({ request }) => request.owner)}::text[],
      ${completed.map(({ request }) => request.key)}::text[],
      ${completed.map(({ request }) => request.digest.toString('hex'))}::text[],
      ${completed.map(({ response }) => response.status)}::smallint[],
      ${completed.map(({ response }) => JSON.stringify(response.headers))}::text[],
      ${bodies}::text[]
    ) as given (owner, key, digest, status, headers, body)
    on conflict (owner, key) do update
      set request_digest = excluded.request_digest, status = excluded.status, headers = excluded.headers,
          body = excluded.body, created_at = excluded.created_at`.execute(tx);
}

function contextOf({ owner, key }: KeyedRequest): string {
  return `idempotency ${owner} ${key}`;
}

/** Deletes expired keys, however many there are. Skips rows that another transaction has locked. */
export async function sweepIdempotencyKeys(db: Database, isStopped = () => false): Promise<void> {
  const isExpired = sql`created_at <= ${steadyNow()} - make_interval(hours => ${keptHours})`;
  while (!isStopped() && (await deleteBatches(db, 'idempotency_keys', isExpired, 1)) > 0);
}

/** Milliseconds between deletions of expired keys. */
const sweepPauseMs = 600_000;

/** @returns a function that stops the deletions, and waits for one that is running */
export function startIdempotencySweep(db: Database, onError: (error: unknown) => void): () => Promise<void> {
  let isStopped = false;
  let sweeping = Promise.resolve();
  const timer = setInterval(() => {
    sweeping = sweeping.then(() => sweepIdempotencyKeys(db, () => isStopped)).catch(onError);
  }, sweepPauseMs);
  return async () => {
    isStopped = true;
    clearInterval(timer);
    await sweeping;
  };
}
