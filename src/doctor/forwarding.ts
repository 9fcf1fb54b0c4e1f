/** What a request to the doctor itself tells of the proxies that it came through. */

import { addressMatcher } from '../http/network.ts';
import { type Check, check } from './report.ts';

export interface Forwarding {
  /** The address of the connection. */
  peer: string;
  /** The headers, with lower-case names. */
  headers: Readonly<Record<string, string | string[] | undefined>>;
  /** NUNCIO_TRUST_PROXY. */
  trusted: readonly string[];
}

/** Compares the headers of a request with the setting. */
export function checkForwarding({ peer, headers, trusted }: Forwarding): Check {
  const name = 'proxies.headers';
  const address = peer.replace(/^::ffff:/, '');
  const isTrusted = addressMatcher(trusted)(address);
  const hasForwarded = headers['x-forwarded-for'] !== undefined;
  const others = ['forwarded', 'via', 'x-real-ip'].filter((header) => headers[header] !== undefined);
  const values = { peer: address, is_trusted: isTrusted, forwarded_for: hasForwarded };
  if (hasForwarded && !isTrusted) {
    return check(
      name,
      'warning',
      `this request came through a proxy at ${address}, which NUNCIO_TRUST_PROXY does not name`,
      `If that is your proxy, add ${address} to NUNCIO_TRUST_PROXY: all its clients share one rate limit.`,
      values,
    );
  }
  if (isTrusted && !hasForwarded) {
    return check(
      name,
      'warning',
      `the trusted proxy at ${address} sent no X-Forwarded-For`,
      'Let the proxy set it to the address of its client (docs/operations.md): all its clients share one rate limit.',
      values,
    );
  }
  if (!hasForwarded && others.length > 0) {
    return check(
      name,
      'warning',
      `a proxy at ${address} sent ${others.join(', ')}, but no X-Forwarded-For`,
      'Let the proxy set X-Forwarded-For to the address of its client, and add the proxy to NUNCIO_TRUST_PROXY.',
      values,
    );
  }
  return check(
    name,
    'ok',
    hasForwarded ? `the trusted proxy at ${address} names its clients` : 'this request came without a proxy',
    null,
    values,
  );
}
