/**
 * Device codes (RFC 8628). Owns the table `device_codes`.
 *
 *   issued → user code entered (`inFlight`) → allowed or denied, once → consumed | expired
 *
 * The statement that looks a code up also records the poll. A poll that comes too early gets `slow_down` and increases
 * the interval by 5 seconds (section 3.5).
 */

import { sql } from 'kysely';
import { errors, Provider } from 'oidc-provider';
import { addressCounters, countGuessInTurn, forgiveGuess } from '../../accounts/throttle.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { deferConsumption } from './deferred_consumption.ts';
import { savePendingGrant } from './grant.ts';
import { type AdapterPayload, type ModelStorage, requestWithoutId, revokedWithGrant } from './storage.ts';

/** Initial interval between polls, in seconds. */
export const pollIntervalSeconds = 5;
/** Maximum wrong user codes from one network within 15 minutes (section 5.1). */
const guessesMax = 20;

export function deviceCodeStorage(db: Database): ModelStorage {
  return {
    async upsert(code, payload, expiresIn) {
      if (payload.accountId !== undefined) await savePendingGrant(db);
      const isDecided = payload.accountId !== undefined || payload.error !== undefined;
      // Of two browsers that enter the same code concurrently, one proceeds. A decision is final.
      const { rows } = await sql`
        insert into device_codes as d (digest, user_code_digest, client_id, payload, expires_at)
        values (${keyOf(code)}, ${digest(payload.userCode ?? '')}, ${payload.clientId}, ${requestWithoutId(payload)},
          now() + ${expiresIn} * interval '1 second')
        on conflict (digest) do update set payload = excluded.payload
        where d.consumed_at is null and not d.payload ?| array['accountId', 'error']
          and (${isDecided} or not d.payload ? 'inFlight')
        returning digest`.execute(db);
      if (rows.length === 0) throw new errors.InvalidRequest('the code has already been used');
    },
    async find(code) {
      return Provider.ctx?.oidc.route === 'token' ? poll(db, code) : findWithoutPoll(db, code);
    },
    async findByUserCode(userCode) {
      // Counted before the lookup: past the limit, a correct code gets the same response as a wrong one.
      const counters = addressCounters('user-code', Provider.ctx?.ip ?? '', guessesMax);
      const wait = await countGuessInTurn(
        db,
        counters.map((counter) => [counter]),
      );
      if (wait !== null) throw new errors.InvalidRequest('too many wrong codes, try again later', 429);
      const { rows } = await sql<{ payload: AdapterPayload; digest: Buffer }>`
        select payload, digest from device_codes
        where user_code_digest = ${digest(userCode)} and consumed_at is null`.execute(db);
      if (rows[0] === undefined) return undefined;
      await forgiveGuess(db, counters);
      return { ...rows[0].payload, jti: toInternalId(rows[0].digest) };
    },
    async consume(code) {
      await deferConsumption(async () => {
        const { rows } = await sql`
          update device_codes set consumed_at = now()
          where digest = ${keyOf(code)} and consumed_at is null
          returning digest`.execute(db);
        if (rows.length === 0) throw new errors.InvalidGrant('device code already consumed');
      });
    },
    revokeByGrantId: revokedWithGrant,
  };
}

/**
 * The user's browser knows only the user code, and the server stores only the digest of the device code. Pages therefore
 * identify the code by its digest. Polls cannot.
 */
const internalPrefix = 'digest:';

function toInternalId(codeDigest: Buffer): string {
  return internalPrefix + codeDigest.toString('hex');
}

function keyOf(code: string): Buffer {
  const isInternal = code.startsWith(internalPrefix) && Provider.ctx?.oidc.route !== 'token';
  return isInternal ? Buffer.from(code.slice(internalPrefix.length), 'hex') : digest(code);
}

interface CodeRow {
  payload: AdapterPayload;
  consumed_at: Date | null;
}

async function poll(db: Database, code: string): Promise<AdapterPayload | undefined> {
  const clientId = Provider.ctx?.oidc.client?.clientId ?? '';
  const { rows } = await sql<CodeRow | { payload: null }>`
    with before as (
      select digest,
        coalesce(last_polled_at > now() - interval_seconds * interval '1 second', false) as is_too_soon
      from device_codes
      where digest = ${digest(code)} and client_id = ${clientId}
      for update)
    update device_codes d set
      last_polled_at = now(),
      interval_seconds = d.interval_seconds + case when before.is_too_soon then 5 else 0 end
    from before
    where d.digest = before.digest
    returning d.consumed_at, case
      when before.is_too_soon and d.expires_at > now() and not d.payload ?| array['accountId', 'error'] then null
      else d.payload end as payload`.execute(db);
  const row = rows[0];
  if (row === undefined) return undefined;
  // The payload is not sent, because it may be large.
  if (row.payload === null) throw new errors.SlowDown();
  return withConsumed(row, code);
}

async function findWithoutPoll(db: Database, code: string): Promise<AdapterPayload | undefined> {
  const { rows } = await sql<CodeRow>`
    select payload, consumed_at from device_codes where digest = ${keyOf(code)}`.execute(db);
  return rows[0] && withConsumed(rows[0], code);
}

function withConsumed({ payload, consumed_at }: CodeRow, code: string) {
  const consumed = consumed_at === null ? {} : { consumed: Math.floor(consumed_at.getTime() / 1_000) };
  return { ...payload, jti: code, ...consumed };
}
