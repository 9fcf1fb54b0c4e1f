/**
 * Form tokens (RFC 6749 section 10.12): each form carries a value that only this server can make for this page
 * of this browser, so that no other site can submit it.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { deriveKey } from '../crypto/sealing.ts';
import { Problem } from '../http/problem.ts';

export interface FormTokens {
  /** @param context what the form belongs to: a browser's secret and what it is about */
  make: (context: string) => string;
  /** @throws Problem 403 when the request was not made by the form */
  check: (request: FastifyRequest, context: string) => void;
}

/** The name of the form's field. */
export const formTokenField = 'form_token';

export function createFormTokens(secret: Buffer, baseUrl: string): FormTokens {
  const key = deriveKey(secret, 'form-token');
  const make = (context: string) => createHmac('sha256', key).update(context).digest('base64url');
  return {
    make,
    check(request, context) {
      const { origin, 'sec-fetch-site': site = 'same-origin' } = request.headers;
      // Browsers send `null` where the page's referrer policy hides it, as that of our pages does. Fetch metadata is not
      // hidden: by it the form of a sibling host is known, which gets cookies of `SameSite` (`none`: the user's own doing).
      const isForeign =
        (origin !== undefined && origin !== 'null' && origin !== baseUrl) ||
        (site !== 'same-origin' && site !== 'none');
      const given = (request.body as Record<string, unknown> | undefined)?.[formTokenField];
      const expected = Buffer.from(make(context));
      const presented = Buffer.from(typeof given === 'string' ? given : '');
      const isRight = presented.length === expected.length && timingSafeEqual(presented, expected);
      if (isForeign || !isRight)
        throw new Problem(403, 'This form has expired or came from another site.', { code: 'form-token' });
    },
  };
}
