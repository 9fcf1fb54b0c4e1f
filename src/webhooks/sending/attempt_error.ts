/**
 * Why an attempt failed: a closed list, each with a sentence for the subscriber's developer. None of them tells
 * anything of the inside.
 */

export const attemptErrors = {
  dns_error: 'The host name could not be resolved.',
  address_refused: 'The host is not on the public internet.',
  connect_error: 'The connection could not be opened.',
  connect_timeout: 'The connection was not opened within 5 seconds.',
  tls_error: 'No secure connection could be agreed on: the certificate or the handshake is not right.',
  timeout: 'The answer did not come within 15 seconds.',
  connection_error: 'The connection broke before the answer was complete.',
  protocol_error: 'The answer was not valid HTTP.',
  unexpected_status: 'The answer was not a 2xx status.',
} as const;

export type AttemptError = keyof typeof attemptErrors;
