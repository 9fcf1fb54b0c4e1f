/** Why an attempt failed, in words, and what whoever runs the receiver can do. */

import type { Attempt } from '../../api/generated.ts';

export interface Advice {
  reason: string;
  todo: string;
}

const byError: Readonly<Record<string, Advice>> = {
  dns_error: {
    reason: 'The host name could not be resolved.',
    todo: 'Check the URL for a typing error, and that the name has an A or AAAA record that the public internet sees.',
  },
  address_refused: {
    reason: 'The host leads to an address that is not on the public internet.',
    todo: 'Deliveries go to public addresses alone. Put the receiver behind a public name, or use a tunnel while you develop.',
  },
  connect_error: {
    reason: 'Nobody took the connection.',
    todo: 'Check that the receiver runs, listens on this port, and that its firewall lets this server in (its addresses are at /meta).',
  },
  connect_timeout: {
    reason: 'The connection was not opened within 5 seconds.',
    todo: 'A firewall that drops packets looks like this. Let the addresses of /meta in.',
  },
  tls_error: {
    reason: 'No secure connection could be agreed on.',
    todo: 'Check that the certificate is for this host, has not expired, and is sent with its intermediate certificates.',
  },
  timeout: {
    reason: 'The answer did not come within 15 seconds.',
    todo: 'Answer 202 at once, and do the work afterwards, from a queue of your own.',
  },
  connection_error: {
    reason: 'The connection broke before the answer was complete.',
    todo: 'Look for a crash or a restart of the receiver at this time, or a proxy in front of it that gave up.',
  },
  protocol_error: {
    reason: 'The answer was not valid HTTP.',
    todo: 'Check that the port speaks HTTP, and that nothing writes to the connection before the answer.',
  },
};

const byStatus: readonly [matches: (status: number) => boolean, advice: Advice][] = [
  [
    (status) => status >= 300 && status < 400,
    {
      reason: 'The receiver redirects elsewhere, and redirects are not followed.',
      todo: 'Put the final address into the subscription.',
    },
  ],
  [
    (status) => status === 401 || status === 403,
    {
      reason: 'The receiver refuses the request.',
      todo: 'Often the signature is not verified right: compare with the code on the page of the subscription. Verify the bytes as they came.',
    },
  ],
  [
    (status) => status === 404,
    {
      reason: 'There is nothing at this path.',
      todo: 'Check the path of the URL, and that the route takes POST.',
    },
  ],
  [
    (status) => status === 410,
    {
      reason: 'The receiver says that it is gone for good.',
      todo: 'The subscription was paused. Resume it when the receiver is back.',
    },
  ],
  [
    (status) => status === 413,
    {
      reason: 'The body is too large for the receiver.',
      todo: 'Raise the limit of the receiver, or of the proxy in front of it.',
    },
  ],
  [
    (status) => status === 429,
    {
      reason: 'The receiver has too much to do.',
      todo: 'Set a rate limit in the settings of the subscription. Retry-After is honoured.',
    },
  ],
  [
    (status) => status >= 400 && status < 500,
    { reason: 'The receiver refuses the request.', todo: 'Its answer below may say why.' },
  ],
  [
    (status) => status >= 500,
    {
      reason: 'The receiver failed.',
      todo: 'Look into its log at the time of the attempt; its answer below may say more.',
    },
  ],
];

/** @returns null for an attempt that was accepted */
export function adviceFor({ error, error_detail: detail, status }: Attempt): Advice | null {
  if (error === null) return null;
  const known = byError[error] ?? byStatus.find(([matches]) => status !== null && matches(status))?.[1];
  if (known === undefined) return { reason: detail ?? error, todo: 'The attempt below has the details.' };
  return status === null ? known : { ...known, reason: `${status}: ${known.reason}` };
}
