/**
 * Redirect URIs that a client may register (RFC 6749 section 3.1.2, RFC 8252 section 7, RFC 9700 section 2.1).
 */

import { isLoopbackHost } from '../config/config.ts';
import { parseUrl } from '../shared/url.ts';

/** Maximum length of a redirect URI in bytes. */
const redirectUriBytesMax = 2_048;

/** Schemes that execute code or read files in a browser. */
const dangerousSchemes = new Set(['javascript:', 'data:', 'vbscript:', 'file:', 'blob:', 'about:']);

/** @returns the error, to follow "the redirect URI …"; undefined if the URI is valid */
export function redirectUriError(text: string): string | undefined {
  if (Buffer.byteLength(text) > redirectUriBytesMax) return `is longer than ${redirectUriBytesMax} bytes`;
  const url = URL.parse(text);
  if (url === null) return 'is not an absolute URI';
  // RFC 6749 section 3.1.2: the URI must not include a fragment component.
  if (text.includes('#')) return 'has a fragment';
  if (url.username !== '' || url.password !== '') return 'contains credentials';
  if (dangerousSchemes.has(url.protocol)) return `has the scheme ${url.protocol}`;
  if (url.protocol === 'https:') return undefined;
  if (url.protocol === 'http:') {
    // RFC 8252 section 7.3: plain http only for loopback, which never leaves the device.
    return isLoopbackHost(url.hostname)
      ? undefined
      : 'uses http, which is allowed for loopback addresses only';
  }
  // RFC 8252 section 7.1: a private-use scheme is a reversed domain name, so that apps do not share one.
  return url.protocol.includes('.')
    ? undefined
    : 'has a scheme that is neither https nor a reversed domain name';
}

/** Whether a URI leads to this server: by its origin or, on loopback, by another name of the same host and port. */
export function isAddressOfServer(uri: string, baseUrl: string): boolean {
  const [url, own] = [parseUrl(uri), new URL(baseUrl)];
  if (url === null || url.protocol !== own.protocol || url.port !== own.port) return false;
  // A trailing dot marks an absolute domain name; it is the same host.
  const [host, ownHost] = [url, own].map(({ hostname }) => hostname.replace(/\.$/, ''));
  return host === ownHost || (isLoopbackHost(String(host)) && isLoopbackHost(String(ownHost)));
}
