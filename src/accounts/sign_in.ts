/**
 * Signs users in by password, with a throttle. Wrong guesses are counted per pair of account and network, per network, and
 * per account, so that neither one account nor many can be attacked quickly. A browser that has signed in to the account
 * before (known_device.ts) has its own counter instead, so strangers cannot lock it out.
 */

import { verifyPassword } from '../crypto/passwords.ts';
import type { Database } from '../database/database.ts';
import { networksOf, wideLimitFactor } from '../http/network.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';
import { type Account, findAccountByEmail, normalizeEmail } from './account.ts';
import type { Device } from './known_device.ts';
import { type Counter, countGuessInTurn, forgiveGuess } from './throttle.ts';

export type SignIn =
  | {
      outcome: 'signed-in';
      account: Account;
      /** The account's epoch when the password was read. */
      signInEpoch: number;
      /** A `Set-Cookie` value that makes the browser a known device. */
      deviceCookie?: string;
    }
  | { outcome: 'refused' }
  | { outcome: 'throttled'; retryAfterSeconds: number };

/** Maximum wrong guesses in one window of the throttle. */
const guessesMax = { ofDevice: 10, ofPair: 10, ofNetwork: 100, ofAccount: 100 } as const;

interface Counters {
  /** Counted in order, as long as no group is over its limit. */
  groups: Counter[][];
  /** Counter that a correct guess resets. */
  resetSubject: string;
}

/**
 * @param remote the client's network address
 * @param device the browser's device tokens; absent for requests that do not come from a browser
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
  const { near, wide } = networksOf(remote);
  const isRight = await waitElsewhere(() =>
    verifyPassword(password, found?.passwordHash ?? null, wide ?? near),
  );
  if (!isRight || found === undefined) return { outcome: 'refused' };
  await forgiveGuess(db, counters.groups.flat(), [counters.resetSubject]);
  const { account, passwordHash, signInEpoch } = found;
  if (device === undefined || passwordHash === null) return { outcome: 'signed-in', account, signInEpoch };
  const deviceCookie = device.remember({ accountId: account.id, passwordHash });
  return { outcome: 'signed-in', account, signInEpoch, deviceCookie };
}

/** The device id, if the browser has signed in to the account with its current password. */
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
  return { groups: [[{ subject, max: guessesMax.ofDevice }]], resetSubject: subject };
}

function countersOfStranger(address: string, remote: string): Counters {
  const { near, wide } = networksOf(remote);
  const pair = `pair\n${address}\n${near}`;
  const of = (network: string, factor: number) => [
    { subject: `pair\n${address}\n${network}`, max: guessesMax.ofPair * factor },
    { subject: `remote\n${network}`, max: guessesMax.ofNetwork * factor },
  ];
  // A network over its own limit does not count towards the site's, nor a site towards the account's, so that neither
  // can lock others out.
  const groups = [of(near, 1), ...(wide === null ? [] : [of(wide, wideLimitFactor)])];
  groups.push([{ subject: `account\n${address}`, max: guessesMax.ofAccount }]);
  return { groups, resetSubject: pair };
}
