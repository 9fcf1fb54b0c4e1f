/**
 * Signing in with a password, behind a throttle: guesses are counted for the pair of account and network address,
 * for the network address, and for the account, so that neither one account nor many can be tried at speed, and a
 * stranger's guesses do not lock the owner out at once.
 */

import { verifyPassword } from '../crypto/passwords.ts';
import type { Database } from '../database/database.ts';
import { type Account, findAccountByEmail, normalizeEmail } from './account.ts';
import { countGuess, forgiveGuess, networkOf } from './throttle.ts';

export type SignIn =
  | { outcome: 'signed-in'; account: Account }
  | { outcome: 'refused' }
  | { outcome: 'throttled'; retryAfterSeconds: number };

/**
 * @param remote the network address that asks
 */
export async function signIn(db: Database, email: string, password: string, remote: string): Promise<SignIn> {
  const address = normalizeEmail(email) ?? '';
  const network = networkOf(remote);
  const pair = `pair\n${address}\n${network}`;
  const ofNetwork = [
    { subject: pair, max: 10 },
    { subject: `remote\n${network}`, max: 100 },
  ];
  const ofAccount = [{ subject: `account\n${address}`, max: 100 }];
  // A network past its own limits adds nothing to the account's: it alone cannot lock the owner out.
  const retryAfterSeconds = (await countGuess(db, ofNetwork)) ?? (await countGuess(db, ofAccount));
  if (retryAfterSeconds !== null) return { outcome: 'throttled', retryAfterSeconds };
  const found = address === '' ? undefined : await findAccountByEmail(db, address);
  const isRight = await verifyPassword(password, found?.passwordHash ?? null);
  if (!isRight || found === undefined) return { outcome: 'refused' };
  await forgiveGuess(db, [...ofNetwork, ...ofAccount], [pair]);
  return { outcome: 'signed-in', account: found.account };
}
