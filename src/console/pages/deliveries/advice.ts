/** The reason of a failed attempt, and advice for the receiver's operator. */

import type { Attempt } from '../../api/generated.ts';

export interface Advice {
  reason: string;
  todo: string;
}

const byError: Readonly<Record<string, Advice>> = {
  dns_error: {
    reason: 'The host name could not be resolved.',
    todo: 'Check the URL for typing errors, and that the name has a public A or AAAA record.',
  },
  address_refused: {
    reason: 'The host resolves to an address that is not on the public internet.',
    todo: 'Deliveries go to public addresses only. Use a public host name, or a tunnel during development.',
  },
  connect_error: {
    reason: 'The connection was refused.',
    todo: 'Check that the receiver is running and listens on this port, and that its firewall allows this server (its addresses are at /meta).',
  },
  connect_timeout: {
    reason: 'The connection was not opened within 5 seconds.',
    todo: 'A firewall may be dropping packets. Allow the addresses listed at /meta.',
  },
  tls_error: {
    reason: 'The TLS handshake failed.',
    todo: 'Check that the certificate is valid for this host, has not expired, and is sent with its intermediate certificates.',
  },
  timeout: {
    reason: 'No response within 15 seconds.',
    todo: 'Respond with 202 immediately, and do the work from a queue afterwards.',
  },
  connection_error: {
    reason: 'The connection closed before the response was complete.',
    todo: 'Check whether the receiver crashed or restarted at this time, or whether a proxy in front of it timed out.',
  },
  conversion_error: {
    reason: 'The event could not be converted to the version of the subscription. Nothing was sent.',
    todo: 'The operator has to mend the conversion, and the server tries again. Moving the subscription to the newest version avoids it.',
  },
  body_too_large: {
    reason: 'The event is larger than agents accept (262,144 bytes). Nothing was sent.',
    todo: 'Read the resource with a tool instead.',
  },
  auth_error: {
    reason: 'The delivery could not authenticate to the receiver. Nothing was sent.',
    todo: 'Check the authentication of the subscription: the token URL, the client’s id and secret, and the scope.',
  },
  protocol_error: {
    reason: 'The response was not valid HTTP.',
    todo: 'Check that the port speaks HTTP, and that nothing writes to the connection before the response.',
  },
};

const byStatus: readonly [matches: (status: number) => boolean, advice: Advice][] = [
  [
    (status) => status >= 300 && status < 400,
    {
      reason: 'The receiver redirected the request. Redirects are not followed.',
      todo: 'Use the final URL in the subscription.',
    },
  ],
  [
    (status) => status === 401 || status === 403,
    {
      reason: 'The receiver refused the request.',
      todo: 'The signature check may be wrong. Compare it with the sample code on the subscription’s page, and verify the raw bytes of the body.',
    },
  ],
  [
    (status) => status === 404,
    {
      reason: 'The path was not found.',
      todo: 'Check the path of the URL, and that the route accepts POST.',
    },
  ],
  [
    (status) => status === 410,
    {
      reason: 'The receiver is permanently gone.',
      todo: 'The subscription was disabled. Resume it when the receiver is back.',
    },
  ],
  [
    (status) => status === 413,
    {
      reason: 'The body is too large for the receiver.',
      todo: 'Raise the body limit of the receiver or of the proxy in front of it.',
    },
  ],
  [
    (status) => status === 429,
    {
      reason: 'The receiver is rate limiting.',
      todo: 'Set a rate limit in the subscription’s settings. Retry-After is respected.',
    },
  ],
  [
    (status) => status >= 400 && status < 500,
    { reason: 'The receiver refused the request.', todo: 'The response below may say why.' },
  ],
  [
    (status) => status >= 500,
    {
      reason: 'The receiver failed.',
      todo: 'Check its logs at the time of the attempt. The response below may say more.',
    },
  ],
];

/** @returns null for an attempt that was accepted */
export function adviceFor({ error, error_detail: detail, status }: Attempt): Advice | null {
  if (error === null) return null;
  const known = byError[error] ?? byStatus.find(([matches]) => status !== null && matches(status))?.[1];
  if (known === undefined) return { reason: detail ?? error, todo: 'See the details of the attempt below.' };
  return status === null ? known : { ...known, reason: `${status}: ${known.reason}` };
}
