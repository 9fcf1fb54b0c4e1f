/**
 * Signing in with a password, behind a throttle. Guesses of strangers are counted for the pair of account and network,
 * for the network, and for the account, so that neither one account nor many can be tried at speed. A browser that has
 * signed in to the account before (known_device.ts) has a count of its own instead: strangers do not lock it out.
 */

import { verifyPassword } from '../crypto/passwords.ts';
import type { Database } from '../database/database.ts';
import { networksOf, wideFactor } from '../http/network.ts';
import { type Account, findAccountByEmail, normalizeEmail } from './account.ts';
import type { Device } from './known_device.ts';
import { type Counter, countGuessInTurn, forgiveGuess } from './throttle.ts';

export type SignIn =
  | {
      outcome: 'signed-in';
      account: Account /** Makes the browser known: a `Set-Cookie` value. */;
      deviceCookie?: string;
    }
  | { outcome: 'refused' }
  | { outcome: 'throttled'; retryAfterSeconds: number };

/** Wrong guesses in a window of the throttle. */
const guessesMax = { ofDevice: 10, ofPair: 10, ofNetwork: 100, ofAccount: 100 } as const;

interface Counters {
  /** Each counted only where those before it let the guess through. */
  groups: Counter[][];
  /** Subject that starts anew with a right guess. */
  forgotten: string;
}

/**
 * @param remote the network address that asks
 * @param device what the browser sent of earlier sign-ins; absent where it is no browser
 */
export async function signIn(
  db: Database,
  email: string,
  password: string,
  remote: string,
  device?: Device,
): Promise<SignIn> {
  const address = normalizeEmail(email) ?? '';
  const deviceId = await knownDevice(db, address, device);
  const counters = deviceId === undefined ? countersOfStranger(address, remote) : countersOfDevice(deviceId);
  const retryAfterSeconds = await countGuessInTurn(db, counters.groups);
  if (retryAfterSeconds !== null) return { outcome: 'throttled', retryAfterSeconds };
  const found = address === '' ? undefined : await findAccountByEmail(db, address);
  const isRight = await verifyPassword(password, found?.passwordHash ?? null);
  if (!isRight || found === undefined) return { outcome: 'refused' };
  await forgiveGuess(db, counters.groups.flat(), [counters.forgotten]);
  const { account, passwordHash } = found;
  if (device === undefined || passwordHash === null) return { outcome: 'signed-in', account };
  const deviceCookie = device.remember({ accountId: account.id, passwordHash });
  return { outcome: 'signed-in', account, deviceCookie };
}

/** What a browser sent is believed for the account that it signed in to, as long as the password is the same. */
async function knownDevice(
  db: Database,
  address: string,
  device: Device | undefined,
): Promise<string | undefined> {
  if (device?.mayBeKnown !== true || address === '') return undefined;
  const found = await findAccountByEmail(db, address);
  if (found === undefined || found.passwordHash === null) return undefined;
  return device.idFor({ accountId: found.account.id, passwordHash: found.passwordHash });
}

function countersOfDevice(id: string): Counters {
  const subject = `device\n${id}`;
  return { groups: [[{ subject, max: guessesMax.ofDevice }]], forgotten: subject };
}

function countersOfStranger(address: string, remote: string): Counters {
  const { near, wide } = networksOf(remote);
  const pair = `pair\n${address}\n${near}`;
  const of = (network: string, factor: number) => [
    { subject: `pair\n${address}\n${network}`, max: guessesMax.ofPair * factor },
    { subject: `remote\n${network}`, max: guessesMax.ofNetwork * factor },
  ];
  // A household past its own limits adds nothing to its site's, nor a site to the account's: neither alone can lock
  // others out.
  const groups = [of(near, 1), ...(wide === null ? [] : [of(wide, wideFactor)])];
  groups.push([{ subject: `account\n${address}`, max: guessesMax.ofAccount }]);
  return { groups, forgotten: pair };
}
