/** The shop's own users and sessions, which do not depend on Nuncio. */

import { createHash, randomBytes, scrypt, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';
import type { Request, Response } from 'express';
import type { Pool } from 'pg';

export interface User {
  id: string;
  email: string;
  name: string;
  /** Seconds since the epoch. */
  signedInAt: number;
}

const derive = promisify(scrypt) as (password: string, salt: Buffer, bytes: number) => Promise<Buffer>;
const digest = (text: string) => createHash('sha256').update(text).digest();

export async function createUser(pool: Pool, email: string, name: string, password: string): Promise<void> {
  const salt = randomBytes(16);
  await pool.query(
    'insert into shop.users (email, name, password_salt, password_hash) values ($1, $2, $3, $4)',
    [email, name, salt, await derive(password, salt, 32)],
  );
}

/** @returns the user's id, or null for a wrong address or password */
export async function checkPassword(pool: Pool, email: string, password: string): Promise<string | null> {
  const { rows } = await pool.query(
    'select id, password_salt, password_hash from shop.users where email = $1',
    [email.trim().toLowerCase()],
  );
  const hash = await derive(password, rows[0]?.password_salt ?? Buffer.alloc(16), 32);
  return rows[0] !== undefined && timingSafeEqual(hash, rows[0].password_hash) ? rows[0].id : null;
}

export async function beginSession(pool: Pool, response: Response, userId: string): Promise<void> {
  const secret = randomBytes(32).toString('base64url');
  await pool.query('insert into shop.sessions (digest, user_id) values ($1, $2)', [digest(secret), userId]);
  // Lax: forms of other sites are sent without the cookie.
  response.cookie('shop_session', secret, { httpOnly: true, sameSite: 'lax' });
}

export async function endSession(pool: Pool, request: Request, response: Response): Promise<void> {
  await pool.query('delete from shop.sessions where digest = $1', [digest(sessionSecret(request))]);
  response.clearCookie('shop_session');
}

export async function currentUser(pool: Pool, request: Request): Promise<User | null> {
  const { rows } = await pool.query(
    `select u.id, u.email, u.name, extract(epoch from s.signed_in_at)::bigint as signed_in_at
     from shop.sessions s join shop.users u on u.id = s.user_id where s.digest = $1`,
    [digest(sessionSecret(request))],
  );
  const row = rows[0];
  return row === undefined ? null : { ...row, signedInAt: Number(row.signed_in_at) };
}

function sessionSecret({ headers }: Request): string {
  const pairs = (headers.cookie ?? '').split('; ');
  return pairs.find((pair) => pair.startsWith('shop_session='))?.slice('shop_session='.length) ?? '';
}
