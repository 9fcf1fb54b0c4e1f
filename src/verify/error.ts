/** Why a delivery is not verified. */

/** Each code with the HTTP status that tells the sender. The server retries after all of them. */
const statuses = {
  /** A header of the delivery is missing. */
  'missing-header': 401,
  /** A header of the delivery does not have its form, occurs twice or is too long. */
  'malformed-header': 401,
  /** The delivery was signed longer ago than `tolerance` allows. */
  'too-old': 401,
  /** The delivery was signed in the future, by this machine's clock. */
  'too-new': 401,
  /** No secret has made the signature: the secret is a different one, or the body was changed on its way. */
  'no-matching-secret': 401,
  /** No public key matches the signature: the deployment is a different one, or the body was changed on its way. */
  'unknown-key': 401,
  /** The body has more than 1 MiB. */
  'body-too-large': 413,
  /** A framework has parsed the body before. The signature covers the bytes as they were sent. */
  'body-parsed': 500,
  /** There is no body. */
  'no-body': 500,
  /** The signature needs a secret, and none was given. */
  'no-secret': 500,
  /** The signature needs public keys, and none were given. */
  'no-public-keys': 500,
  /** A secret is not text, empty, has white space around it or, for `standard`, is not `whsec_` and base64. */
  'malformed-secret': 500,
  /** A public key is not `whpk_` and the base64 of 32 bytes. */
  'malformed-public-key': 500,
  /** The public keys could not be loaded. */
  'keys-unavailable': 503,
} as const;

export type VerificationErrorCode = keyof typeof statuses;

/** An error with the status of the response. */
export class StatusError<Code extends string> extends Error {
  readonly code: Code;
  /** The HTTP status of the response. Express and Fastify use it for errors that reach them. */
  readonly status: number;
  readonly statusCode: number;

  constructor(code: Code, status: number, message: string, cause?: unknown) {
    super(message, { cause });
    this.code = code;
    this.status = this.statusCode = status;
  }
}

/** The delivery is not verified. Messages contain no secret and no valid signature. */
export class VerificationError extends StatusError<VerificationErrorCode> {
  override readonly name = 'VerificationError';

  constructor(code: VerificationErrorCode, message: string, cause?: unknown) {
    super(code, statuses[code], message, cause);
  }
}
