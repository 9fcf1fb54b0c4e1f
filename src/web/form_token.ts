/**
 * Form tokens protect forms against cross-site request forgery (RFC 6749 section 10.12). Only this server can create the token
 * of a page for a browser, so other sites cannot submit the form.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { deriveKey } from '../crypto/sealing.ts';
import { Problem } from '../http/problem.ts';

export interface FormTokens {
  /** @param context a secret of the browser and the purpose of the form */
  make: (context: string) => string;
  /** @throws Problem 403 if the request does not come from the form */
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
      // Browsers send the origin `null` because of the referrer policy of our pages. `Sec-Fetch-Site` is sent in any case and
      // detects forms of sibling hosts, which get `SameSite` cookies. The value `none` means that the user made the request.
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
