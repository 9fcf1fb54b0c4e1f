/**
 * Limits the parameters of requests to `/oauth/par` (RFC 9126) and `/oauth/device` (RFC 8628). Anyone can send such a request with the
 * public id of an app. Its parameters are stored, and each visit to `/oauth/authorize` stores those of a pushed request again. A body could
 * have more of them than a URL, so the limit is that of a URL.
 */

import { parse, stringify } from 'node:querystring';
import { Problem } from '../http/problem.ts';

/** Percent-encoded, as in a URL: as many as the head of a request may have (http/application.ts). */
export const parameterBytesMax = 16_384;

const limitedPaths: ReadonlySet<string> = new Set(['/oauth/par', '/oauth/device']);

/** These are not stored. A client assertion may contain certificates. */
const credentials = ['client_secret', 'client_assertion', 'client_assertion_type'];

/** Percent-encoding makes at most three bytes of one. */
const smallBytesMax = parameterBytesMax / 3;

/**
 * @param form the body of a request, as received
 * @throws Problem 413 (RFC 9126 section 2.3)
 */
export function refuseLargeRequest(path: string, form: Buffer): void {
  if (!limitedPaths.has(path) || form.length <= smallBytesMax) return;
  const parameters = parse(form.toString());
  for (const name of credentials) delete parameters[name];
  if (stringify(parameters).length <= parameterBytesMax) return;
  throw new Problem(413, `the parameters have more than ${parameterBytesMax} bytes when percent-encoded`);
}
