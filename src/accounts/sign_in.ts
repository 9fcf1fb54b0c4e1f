/**
 * Signing in with a password, and the throttle before it: guesses are counted for the pair of account and network
 * address, for the network address, and for the account, so that neither one account nor many can be tried at
 * speed, and a stranger's guesses do not lock the owner out at once. Owns the table `sign_in_failures`.
 *
 * A guess is counted before the password is looked at, and taken back when it was right: guesses made at the
 * same moment cannot slip through together.
 */

import { sql } from 'kysely';
import { digest } from '../crypto/digest.ts';
import { verifyPassword } from '../crypto/passwords.ts';
import type { Database } from '../database/database.ts';
import { type Account, findAccountByEmail, normalizeEmail } from './account.ts';

/** Minutes that failures are counted for, and how many are let through in them. */
const windowMinutes = 15;
const limits = { pair: 10, remote: 100, account: 100 } as const;

export type SignIn =
  | { outcome: 'signed-in'; account: Account }
  | { outcome: 'refused' }
  | { outcome: 'throttled'; retryAfterSeconds: number };

/**
 * @param remote the network address that asks
 */
export async function signIn(db: Database, email: string, password: string, remote: string): Promise<SignIn> {
  const address = normalizeEmail(email) ?? '';
  const subjects = [
    digest(`pair\n${address}\n${network(remote)}`),
    digest(`remote\n${network(remote)}`),
    digest(`account\n${address}`),
  ];
  const counted = await count(db, subjects);
  if (counted.overLimit) return { outcome: 'throttled', retryAfterSeconds: counted.retryAfterSeconds };
  const found = address === '' ? undefined : await findAccountByEmail(db, address);
  const isRight = await verifyPassword(password, found?.passwordHash ?? null);
  if (!isRight || found === undefined) return { outcome: 'refused' };
  await forgive(db, subjects);
  return { outcome: 'signed-in', account: found.account };
}

async function count(db: Database, subjects: Buffer[]) {
  const { rows } = await sql<{ failures: number; max: number; seconds: number }>`
    insert into sign_in_failures as f (subject, failures, window_ends_at)
    select subject, 1, now() + ${windowMinutes} * interval '1 minute'
    from unnest(${subjects}::bytea[]) as s (subject)
    order by subject
    on conflict (subject) do update set
      failures = case when f.window_ends_at < now() then 1 else f.failures + 1 end,
      window_ends_at = case when f.window_ends_at < now() then excluded.window_ends_at else f.window_ends_at end
    returning failures,
      (array[${limits.pair}::int, ${limits.remote}::int, ${limits.account}::int])[
        array_position(${subjects}::bytea[], subject)] as max,
      ceil(extract(epoch from window_ends_at - now()))::int as seconds`.execute(db);
  const over = rows.filter((row) => row.failures > row.max);
  return { overLimit: over.length > 0, retryAfterSeconds: Math.max(1, ...over.map((row) => row.seconds)) };
}

/** The guess was right: the pair starts anew, and the wider counters lose this one. */
async function forgive(db: Database, [pair, ...others]: Buffer[]): Promise<void> {
  await sql`
    with forgotten as (delete from sign_in_failures where subject = ${pair})
    update sign_in_failures set failures = greatest(failures - 1, 0)
    where subject = any(${others}::bytea[])`.execute(db);
}

/** IPv6 addresses come by the /64: one household, one network. */
function network(remote: string): string {
  if (!remote.includes(':') || remote.startsWith('::ffff:')) return remote;
  const [head = '', tail] = remote.split('::', 2);
  const groups = head === '' ? [] : head.split(':');
  const after = tail === undefined || tail === '' ? [] : tail.split(':');
  const missing = tail === undefined ? 0 : 8 - groups.length - after.length;
  return [...groups, ...Array<string>(Math.max(0, missing)).fill('0'), ...after].slice(0, 4).join(':');
}
