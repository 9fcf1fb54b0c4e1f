/**
 * Errors of outgoing connections. Their messages are shown to third parties and do not reveal resolved addresses or other
 * internals.
 */

const sentences = {
  dns_error: 'The host name could not be resolved.',
  address_refused: 'The host is not on the public internet.',
  connect_error: 'The connection could not be opened.',
  connect_timeout: 'The connection was not opened in time.',
  tls_error: 'No secure connection could be agreed on.',
} as const;

export type EgressErrorCode = keyof typeof sentences;

export class EgressError extends Error {
  override readonly name = 'EgressError';
  readonly code: EgressErrorCode;
  /** The TLS error in OpenSSL's words; only for `tls_error`. */
  readonly reason: string | undefined;

  constructor(code: EgressErrorCode, options: { cause?: unknown; reason?: string | undefined } = {}) {
    super(sentences[code], { cause: options.cause });
    this.code = code;
    this.reason = options.reason;
  }
}
