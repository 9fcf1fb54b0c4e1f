/**
 * Known devices: recognizes a browser that has signed in to an account before, so that password guesses by others cannot
 * lock its user out (OWASP, "device cookies"). The browser still needs the password, and has a limit on wrong guesses of
 * its own.
 *
 *   signed in → cookie → (renewed with each sign-in) → invalid after a password change or a year without sign-in
 *
 * A cookie contains up to `tokensMax` tokens, one per account: `<day>.<random>.<HMAC of both, account and password hash>`.
 * The server stores nothing, and the cookie does not reveal the account.
 */

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { deriveKey } from '../crypto/sealing.ts';
import { readCookie } from '../http/cookie.ts';

/** Maximum accounts per browser. The least recently used one is dropped. */
const tokensMax = 4;
/** Lifetime of a token in days, since the last sign-in. */
const daysMax = 365;
const dayMs = 86_400_000;

/** An account with its current password hash. */
export interface DeviceOwner {
  accountId: string;
  passwordHash: string;
}

/** The tokens of one browser. */
export interface Device {
  /** @returns the id under which the browser's guesses are counted; undefined if it is unknown to the account */
  idFor: (owner: DeviceOwner) => string | undefined;
  /** Whether the browser sent any token of the right format. */
  mayBeKnown: boolean;
  /** @returns a `Set-Cookie` value that adds the account to the known ones */
  remember: (owner: DeviceOwner) => string;
}

export interface KnownDevices {
  /** @param cookies the request's `Cookie` header */
  read: (cookies: string | undefined) => Device;
}

export function createKnownDevices(secret: Buffer, baseUrl: string): KnownDevices {
  const key = deriveKey(secret, 'known-device');
  const isSecure = baseUrl.startsWith('https:');
  // With the prefix, sibling hosts cannot overwrite the cookie.
  const name = isSecure ? '__Host-nuncio_device' : 'nuncio_device';
  const attributes = `Path=/; Max-Age=${daysMax * 86_400}; HttpOnly; SameSite=Lax${isSecure ? '; Secure' : ''}`;

  const sign = (day: string, random: string, { accountId, passwordHash }: DeviceOwner) =>
    createHmac('sha256', key).update([day, random, accountId, passwordHash].join('\n')).digest('base64url');

  const isTokenOf = (token: string, owner: DeviceOwner) => {
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
        idFor: (owner) => tokens.find((token) => isTokenOf(token, owner))?.split('.')[1],
        remember(owner) {
          const day = String(today());
          const random = randomBytes(16).toString('base64url');
          const others = tokens.filter((token) => !isTokenOf(token, owner));
          const kept = [`${day}.${random}.${sign(day, random, owner)}`, ...others].slice(0, tokensMax);
          return `${name}=${kept.join('~')}; ${attributes}`;
        },
      };
    },
  };
}

const tokenShape = /^(\d{1,6})\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}$/;

function readTokens(cookies: string | undefined, name: string): string[] {
  const value = readCookie(cookies, name) ?? '';
  return value.split('~', tokensMax).filter((token) => {
    const day = Number(tokenShape.exec(token)?.[1] ?? Number.NaN);
    return day <= today() && day > today() - daysMax;
  });
}

function today(): number {
  return Math.floor(Date.now() / dayMs);
}
