/**
 * Password hashing with argon2id (RFC 9106) and OWASP's first recommended parameters (19 MiB, 2 passes, 1 lane). Hashes are
 * PHC strings, which contain the parameters, so that new hashes can use stronger ones.
 */

import crypto, { randomBytes, timingSafeEqual } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { promisify } from 'node:util';
import { LimitedWork } from '../shared/limited_work.ts';

const memoryKib = 19_456;
const passes = 2;
const parallelism = 1;
const saltBytes = 16;
const tagLength = 32;
/** The library's number of the algorithm. */
const argon2id = 2;

/** Maximum length of a password in bytes, to bound the cost of hashing. */
export const passwordBytesMax = 1_024;

/** @returns a PHC string: `$argon2id$v=19$m=19456,t=2,p=1$<salt>$<hash>` */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(saltBytes);
  const hash = await derive('', password, salt, memoryKib, passes, parallelism);
  return `$argon2id$v=19$m=${memoryKib},t=${passes},p=${parallelism}$${toB64(salt)}$${toB64(hash)}`;
}

const phc = /^\$argon2id\$v=19\$m=(\d+),t=(\d+),p=(\d+)\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

/**
 * @param stored the PHC string; null for an account that does not exist or has no password. Null costs the same time, so
 *   that response times do not reveal which accounts exist.
 * @param guesser who sent the password: next is the one that has used least of its share of the time
 */
export async function verifyPassword(
  password: string,
  stored: string | null,
  guesser = '',
): Promise<boolean> {
  if (Buffer.byteLength(password) > passwordBytesMax) return false;
  const match = phc.exec(stored ?? (await placeholderHash()));
  if (!match) throw new Error('the stored password hash has an unknown format');
  const [, m, t, p, salt = '', hash = ''] = match;
  const expected = Buffer.from(hash, 'base64');
  const actual = await derive(
    guesser,
    password,
    Buffer.from(salt, 'base64'),
    Number(m),
    Number(t),
    Number(p),
  );
  return timingSafeEqual(actual, expected) && stored !== null;
}

let placeholder: Promise<string> | undefined;

function placeholderHash(): Promise<string> {
  placeholder ??= hashPassword(randomBytes(16).toString('hex')).catch((error: unknown) => {
    // The next one tries again.
    placeholder = undefined;
    throw error;
  });
  return placeholder;
}

type Derive = (
  password: string,
  salt: Buffer,
  memory: number,
  time: number,
  lanes: number,
) => Promise<Buffer>;

/** Node.js's threads for slow work. They also verify and sign tokens, and look up the database's name. */
const threads = 4;

/** Half of the processors and, because what waits for a thread waits for whole hashes, at most half of the threads. */
export function hashesAtOnce(processors: number): number {
  return Math.max(1, Math.floor(Math.min(processors, threads) / 2));
}

/**
 * Each hash keeps a processor busy for tens of milliseconds and takes 19 MiB. Without a limit, a flood of passwords would
 * take the processors from the rest of the node. Next is the guesser that has used least of its share, so that the passwords of some networks do not hold up those of others;
 * the sign-in throttle limits how many each network has.
 */
const hashes = new LimitedWork(hashesAtOnce(availableParallelism()));

function derive(guesser: string, ...parameters: Parameters<Derive>): Promise<Buffer> {
  return hashes.run(guesser, () => deriveNow(...parameters));
}

/** Node has Argon2 since version 24.7. */
const deriveNow: Derive = crypto.argon2 === undefined ? deriveByLibrary : deriveByNode;

async function deriveByNode(...[password, nonce, memory, time, lanes]: Parameters<Derive>) {
  const parameters = { message: password, nonce, memory, passes: time, parallelism: lanes, tagLength };
  return (await promisify(crypto.argon2)('argon2id', parameters)) as Buffer;
}

async function deriveByLibrary(...[password, salt, memory, time, lanes]: Parameters<Derive>) {
  const { hashRaw } = await import('@node-rs/argon2');
  const cost = { memoryCost: memory, timeCost: time, parallelism: lanes, outputLen: tagLength };
  return hashRaw(password, { ...cost, salt, algorithm: argon2id });
}

function toB64(bytes: Buffer): string {
  return bytes.toString('base64').replaceAll('=', '');
}
