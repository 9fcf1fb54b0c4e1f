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
  request: KeyedRequest,
  work: (tx: Transaction) => Promise<Answer>,
  sealer?: Sealer,
): Promise<Answer> {
  const [before] = await claimKeys(tx, [request], sealer);
  if (before instanceof Problem) throw before;
  if (before !== undefined) return before;
  const answer = await work(tx);
  await keepAnswers(tx, [{ request, answer }], sealer);
  return answer;
}

/**
 * Looks at the keys of several requests that share a transaction, and locks those keys until it ends.
 * @returns for each request the response that it had before, why it is refused, or undefined: it is to be done
 */
export async function claimKeys(
  tx: Transaction,
  requests: readonly KeyedRequest[],
  sealer?: Sealer,
): Promise<(Answer | Problem | undefined)[]> {
  const names = requests.map(nameOf);
  // The locks end with the transaction, and with the connection of a process that died.
  const { rows: locks } = await sql<{ isFree: boolean }>`
    select pg_try_advisory_xact_lock(hashtextextended(current_schema() || ' ' || name, 50)) as "isFree"
    from unnest(${names}::text[]) with ordinality as given (name, place) order by place`.execute(tx);
  const { rows } = await sql<Answer & { owner: string; key: string; digest: string }>`
    select k.owner, k.key, encode(k.request_digest, 'hex') as digest, k.status, k.headers, k.body
    from unnest(${requests.map(({ owner }) => owner)}::text[], ${requests.map(({ key }) => key)}::text[])
      as given (owner, key)
    join idempotency_keys k on k.owner = given.owner and k.key = given.key
    where k.created_at > now() - make_interval(hours => ${keptHours})`.execute(tx);
  const before = new Map(rows.map((row) => [nameOf(row), row]));
  const claimed = new Set<string>();
  return requests.map((request, index) => {
    const name = names[index] as string;
    // The lock keeps other transactions off, and not a second request of this one.
    if (locks[index]?.isFree !== true || claimed.has(name)) return stillRunning();
    claimed.add(name);
    const kept = before.get(name);
    if (kept === undefined) return undefined;
    return kept.digest === request.digest.toString('hex') ? replay(request, kept, sealer) : reused();
  });
}

/** Owners have two parts without spaces: no owner with a key has the name of another one with another key. */
function nameOf({ owner, key }: Pick<KeyedRequest, 'owner' | 'key'>): string {
  return `${owner} ${key}`;
}

function stillRunning(): Problem {
  return new Problem(409, 'The first request with this Idempotency-Key is still being worked on.', {
    code: 'idempotency-key-in-use',
    headers: { 'retry-after': '1' },
  });
}

function reused(): Problem {
  return new Problem(422, 'This Idempotency-Key came with another request before.', {
    code: 'idempotency-key-reused',
  });
}

function replay(request: KeyedRequest, { status, headers, body }: Answer, sealer?: Sealer): Answer {
  const text =
    body === null || sealer === undefined
      ? body
      : sealer.open(Buffer.from(body, 'base64'), contextOf(request)).toString();
  return { status, headers: { ...headers, 'idempotency-replayed': 'true' }, body: text };
}

/** Keeps responses, in the transaction that did the work. */
export async function keepAnswers(
  tx: Transaction,
  answered: readonly { request: KeyedRequest; answer: Answer }[],
  sealer?: Sealer,
): Promise<void> {
  const bodies = answered.map(({ request, answer: { body } }) =>
    body === null || sealer === undefined ? body : sealer.seal(body, contextOf(request)).toString('base64'),
  );
  await sql`
    insert into idempotency_keys (owner, key, request_digest, status, headers, body)
    select owner, key, decode(digest, 'hex'), status, headers::jsonb, body
    from unnest(
      ${answered.map(({ request }) => request.owner)}::text[],
      ${answered.map(({ request }) => request.key)}::text[],
      ${answered.map(({ request }) => request.digest.toString('hex'))}::text[],
      ${answered.map(({ answer }) => answer.status)}::smallint[],
      ${answered.map(({ answer }) => JSON.stringify(answer.headers))}::text[],
      ${bodies}::text[]
    ) as given (owner, key, digest, status, headers, body)
    on conflict (owner, key) do update
      set request_digest = excluded.request_digest, status = excluded.status, headers = excluded.headers,
          body = excluded.body, created_at = excluded.created_at`.execute(tx);
}

function contextOf({ owner, key }: KeyedRequest): string {
  return `idempotency ${owner} ${key}`;
}

/** Keys forgotten in one statement at most. */
const sweepRowsMax = 10_000;

/** Forgets what has been kept long enough. Waits for nobody who renews some of these keys in one transaction. */
export async function sweepIdempotencyKeys(db: Database): Promise<void> {
  await sql`
    delete from idempotency_keys where ctid = any(array(
      select ctid from idempotency_keys where created_at <= now() - make_interval(hours => ${keptHours})
      limit ${sweepRowsMax} for update skip locked))`.execute(db);
}
