/** Verifies one delivery. */

import { toBytes } from './bytes.ts';
import { VerificationError } from './error.ts';
import {
  type DeliveryHeaders,
  type HeaderNames,
  type HeaderPreset,
  headerFinder,
  namesOf,
} from './headers.ts';
import { checkPublicKeys, type PublicKeys } from './public_keys.ts';
import { checkSecrets } from './secret.ts';
import { readHeader, readSignature } from './signature.ts';

export interface VerifyOptions {
  /** The headers of the request, in any shape: a `Headers`, an object, a list of pairs, or an AWS Lambda event. */
  headers: DeliveryHeaders;
  /** The body of the request as it was sent: text or bytes, not a parsed object. */
  body: string | ArrayBuffer | ArrayBufferView;
  /** The subscription's secret (`whsec_…`). */
  secret?: string | undefined;
  /** Several secrets, of which one must match: during a rotation, or of several subscriptions. */
  secrets?: readonly string[] | undefined;
  /** For `signature: "ed25519"`: what `/meta` shows, its URL, or a function that loads it. */
  publicKeys?: PublicKeys | undefined;
  /** How far the time of the signature may be from this machine's clock, in seconds. Default: 300. */
  tolerance?: number | undefined;
  /** The names of the headers, if the operator has changed them: `headers` of `/meta`, or a preset. */
  headerNames?: HeaderPreset | Partial<HeaderNames> | undefined;
}

/** A verified delivery. Signatures cover the body and, for `standard` and `ed25519`, `id` and `timestamp`, not the rest. */
export interface Delivery {
  /** The same at every attempt. Handle each id once. */
  id: string;
  /** The kind of the event. */
  kind: string;
  /** 1, 2, 3 … for each subscription. */
  sequence: number;
  /** When the attempt was signed, as Unix time in seconds; null for `sha256`, which does not say it. */
  timestamp: number | null;
  /** The id of the account that the event belongs to; null if it belongs to none. */
  account: string | null;
}

/**
 * Verifies a delivery.
 * @throws VerificationError if it is not verified; its `code` says why
 * @throws TypeError if an option is invalid
 */
export async function verify(options: VerifyOptions): Promise<Delivery> {
  const { tolerance = 300, secret, secrets = [], publicKeys } = options;
  if (!(Number.isFinite(tolerance) && tolerance >= 0)) {
    throw new TypeError('tolerance must be a number of seconds');
  }
  const names = namesOf(options.headerNames);
  const body = toBytes(options.body);
  const find = headerFinder(options.headers);
  const signature = readSignature(find, names, publicKeys != null);
  const { id, timestamp } = signature;
  if (timestamp !== null) checkAge(timestamp, tolerance);
  if (signature.format === 'ed25519') await checkPublicKeys(signature, body, publicKeys);
  else await checkSecrets(signature, body, secret === undefined ? secrets : [secret, ...secrets]);
  return {
    id,
    kind: readHeader(find, names.event),
    sequence: Number(readHeader(find, names.sequence, /^\d{1,15}$/)),
    timestamp,
    account: find(names.account) === undefined ? null : readHeader(find, names.account),
  };
}

function checkAge(timestamp: number, tolerance: number): void {
  const age = Date.now() / 1_000 - timestamp;
  if (Math.abs(age) <= tolerance) return;
  const [code, words] = age > 0 ? (['too-old', 'ago'] as const) : (['too-new', 'in the future'] as const);
  throw new VerificationError(
    code,
    `The delivery was signed ${Math.round(Math.abs(age))} seconds ${words}, by this machine's clock.`,
  );
}
