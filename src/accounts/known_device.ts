/**
 * Known devices: a browser that signed in to an account before is told apart from strangers, so that guesses of
 * strangers cannot shut its owner out (OWASP, "device cookies"). It still needs the password, and has a bounded count of
 * wrong guesses of its own.
 *
 *   signed in → cookie → (signs in again, replaced) → invalid: the password was changed, or a year without signing in
 *
 * A cookie has up to `tokensMax` tokens, one for each account: `<day>.<random>.<HMAC of both, account and password hash>`.
 * Nothing is stored, and the cookie does not say whose it is.
 */

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { deriveKey } from '../crypto/sealing.ts';

/** Accounts that one browser is remembered for; the one used longest ago is forgotten. */
const tokensMax = 4;
/** Days without signing in after which a browser is a stranger again. */
const daysMax = 365;
const dayMs = 86_400_000;

/** An account as of its present password. */
export interface DeviceOwner {
  accountId: string;
  passwordHash: string;
}

/** What one browser sent. */
export interface Device {
  /** @returns the name that its guesses are counted under; undefined for a stranger to this account */
  idFor: (owner: DeviceOwner) => string | undefined;
  /** Whether it sent anything that could be a token. */
  mayBeKnown: boolean;
  /** @returns a `Set-Cookie` value that makes it known to this account too */
  remember: (owner: DeviceOwner) => string;
}

export interface KnownDevices {
  /** @param cookies the request's `Cookie` header */
  read: (cookies: string | undefined) => Device;
}

export function createKnownDevices(secret: Buffer, baseUrl: string): KnownDevices {
  const key = deriveKey(secret, 'known-device');
  const isSecure = baseUrl.startsWith('https:');
  // The prefix keeps hosts beside this one from replacing it.
  const name = isSecure ? '__Host-nuncio_device' : 'nuncio_device';
  const attributes = `Path=/; Max-Age=${daysMax * 86_400}; HttpOnly; SameSite=Lax${isSecure ? '; Secure' : ''}`;

  const sign = (day: string, random: string, { accountId, passwordHash }: DeviceOwner) =>
    createHmac('sha256', key).update([day, random, accountId, passwordHash].join('\n')).digest('base64url');

  const isOf = (token: string, owner: DeviceOwner) => {
    const [day = '', random = '', mac = ''] = token.split('.');
    const expected = Buffer.from(sign(day, random, owner));
    const presented = Buffer.from(mac);
    return presented.length === expected.length && timingSafeEqual(presented, expected);
  };

  return {
    read(cookies) {
      const tokens = readTokens(cookies, name);
      return {
        mayBeKnown: tokens.length > 0,
        idFor: (owner) => tokens.find((token) => isOf(token, owner))?.split('.')[1],
        remember(owner) {
          const day = String(today());
          const random = randomBytes(16).toString('base64url');
          const others = tokens.filter((token) => !isOf(token, owner));
          const kept = [`${day}.${random}.${sign(day, random, owner)}`, ...others].slice(0, tokensMax);
          return `${name}=${kept.join('~')}; ${attributes}`;
        },
      };
    },
  };
}

const tokenShape = /^(\d{1,6})\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}$/;

function readTokens(cookies: string | undefined, name: string): string[] {
  const pairs = (cookies ?? '').split('; ');
  const value = pairs.find((pair) => pair.startsWith(`${name}=`))?.slice(name.length + 1) ?? '';
  return value.split('~', tokensMax).filter((token) => {
    const day = Number(tokenShape.exec(token)?.[1] ?? Number.NaN);
    return day <= today() && day > today() - daysMax;
  });
}

function today(): number {
  return Math.floor(Date.now() / dayMs);
}
