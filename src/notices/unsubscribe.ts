/**
 * Links that stop the notices of one kind without a sign-in (RFC 8058). The token names the account and the kind, and only
 * this deployment can make it. It does not expire, because mails are kept for years, and can do nothing else.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import { isId } from '../crypto/ids.ts';
import { deriveKey } from '../crypto/sealing.ts';
import { isNoticeKind, type NoticeKind } from './kinds.ts';

export interface UnsubscribeTokens {
  make: (accountId: string, kind: NoticeKind) => string;
  /** @returns undefined if the token is not one of ours */
  read: (token: unknown) => { accountId: string; kind: NoticeKind } | undefined;
}

export const unsubscribePath = '/account/unsubscribe';

export function createUnsubscribeTokens(secret: Buffer): UnsubscribeTokens {
  const key = deriveKey(secret, 'unsubscribe');
  const sign = (named: string) => createHmac('sha256', key).update(named).digest('base64url');
  return {
    make(accountId, kind) {
      const named = `${accountId}.${kind}`;
      return `${named}.${sign(named)}`;
    },
    read(token) {
      if (typeof token !== 'string') return undefined;
      const [accountId = '', kind, signature = '', ...rest] = token.split('.');
      if (rest.length > 0 || !isId(accountId) || !isNoticeKind(kind)) return undefined;
      const expected = Buffer.from(sign(`${accountId}.${kind}`));
      const given = Buffer.from(signature);
      const isOurs = given.length === expected.length && timingSafeEqual(given, expected);
      return isOurs ? { accountId, kind } : undefined;
    },
  };
}
