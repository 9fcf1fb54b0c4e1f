/**
 * The reasons why an attempt fails: a closed list, each with a sentence for the subscriber's developer. No sentence
 * reveals anything about the internal network.
 */

export const attemptErrors = {
  dns_error: 'The host name could not be resolved.',
  address_refused: 'The host is not on the public internet.',
  connect_error: 'The connection could not be opened.',
  connect_timeout: 'The connection was not opened within 5 seconds.',
  tls_error: 'The TLS handshake failed or the certificate is not valid.',
  timeout: 'No response arrived within 15 seconds, or 10 for an agent.',
  connection_error: 'The connection closed before the response was complete.',
  protocol_error: 'The response was not valid HTTP.',
  conversion_error:
    'Nothing was sent: the event could not be converted to the version of the subscription. It is tried again.',
  auth_error: 'Nothing was sent: the delivery could not authenticate to the subscriber. It is tried again.',
  body_too_large: 'Nothing was sent: the event is larger than agents accept. It is not tried again.',
  unexpected_status: 'The response status was not 2xx.',
} as const;

export type AttemptError = keyof typeof attemptErrors;
