/**
 * Redirect URIs that a client may register (RFC 6749 section 3.1.2, RFC 8252 section 7, RFC 9700 section 2.1).
 */

import { isLoopbackHost } from '../config/config.ts';

/** Bytes of one redirect URI at most. */
export const redirectUriBytesMax = 2_048;

/** Schemes that run code or read files where a browser follows them. */
const dangerousSchemes = new Set(['javascript:', 'data:', 'vbscript:', 'file:', 'blob:', 'about:']);

/** @returns what is wrong with it, to follow "the redirect URI …", or undefined where it is good */
export function redirectUriFault(text: string): string | undefined {
  if (Buffer.byteLength(text) > redirectUriBytesMax) return `is longer than ${redirectUriBytesMax} bytes`;
  const url = URL.parse(text);
  if (url === null) return 'is not an absolute URI';
  // RFC 6749 section 3.1.2: the URI must not include a fragment component.
  if (text.includes('#')) return 'has a fragment';
  if (url.username !== '' || url.password !== '') return 'has credentials in it';
  if (dangerousSchemes.has(url.protocol)) return `has the scheme ${url.protocol}`;
  if (url.protocol === 'https:') return undefined;
  if (url.protocol === 'http:') {
    // RFC 8252 section 7.3: plain http only where it never leaves the device.
    return isLoopbackHost(url.hostname) ? undefined : 'is plain http and not of this device (loopback)';
  }
  // RFC 8252 section 7.1: private-use schemes are domain names in reverse, so that apps do not share them.
  return url.protocol.includes('.')
    ? undefined
    : 'has a scheme that is neither https nor a reversed domain name';
}

/** Whether an address leads to this server: by its own origin, or in development by another name of the same device. */
export function isAddressOfServer(uri: string, baseUrl: string): boolean {
  const [url, own] = [URL.parse(uri), new URL(baseUrl)];
  if (url === null || url.protocol !== own.protocol || url.port !== own.port) return false;
  // With a dot at its end a name is the same one, written as absolute.
  const [host, ownHost] = [url, own].map(({ hostname }) => hostname.replace(/\.$/, ''));
  return host === ownHost || (isLoopbackHost(String(host)) && isLoopbackHost(String(ownHost)));
}
