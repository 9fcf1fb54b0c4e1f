/**
 * Rules for a subscriber's URL. This check runs at registration and gives early feedback. It does not resolve names,
 * so it accepts a name that does not exist yet. The check that protects the network runs at each connection, on the
 * address that is really connected to (src/egress).
 */

import { isIP } from 'node:net';
import { classifyAddress } from '../../egress/address.ts';
import { allowListOf } from '../../egress/allow_list.ts';

/** Maximum length of a URL in bytes. */
const urlBytesMax = 2_048;

/** Ports from 1024 up that well-known services other than web servers use. */
const refusedPorts = new Set([
  1433, 1434, 1521, 1883, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3306, 3389, 4369, 4444, 5060, 5061, 5432,
  5433, 5671, 5672, 5900, 5901, 5984, 5985, 5986, 6000, 6379, 6380, 6443, 6660, 6661, 6662, 6663, 6664, 6665,
  6666, 6667, 6668, 6669, 6697, 8086, 8125, 9042, 9092, 9160, 9200, 9300, 10080, 10250, 10255, 11211, 11300,
  15672, 16379, 25565, 26257, 26379, 27017, 27018, 27019, 28015, 28017, 50070,
]);

// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for
const controlCharacter = /[\u0000-\u001f\u007f]/;

export type UrlErrorCode =
  | 'url_invalid'
  | 'url_scheme'
  | 'url_credentials'
  | 'url_fragment'
  | 'url_length'
  | 'url_port'
  | 'url_address';

export interface UrlError {
  code: UrlErrorCode;
  message: string;
}

export type CheckedUrl = { url: string; error?: never } | { url?: never; error: UrlError };

/**
 * @param allowInsecure accepts `http` and loopback hosts, for development
 * @param allow private receivers that the operator listed: these may be private, and without TLS
 * @returns the normalized URL, or why it is refused
 */
export function checkSubscriberUrl(
  text: string,
  allowInsecure: boolean,
  allow: readonly string[] = [],
): CheckedUrl {
  if (Buffer.byteLength(text) > urlBytesMax) {
    return refuse('url_length', `must have at most ${urlBytesMax} bytes`);
  }
  // The URL parser silently drops tabs and line breaks: the stored URL would differ from the one that was sent.
  if (controlCharacter.test(text)) {
    return refuse('url_invalid', 'must not contain control characters, such as line breaks or tabs');
  }
  const url = URL.parse(text);
  if (url === null) {
    const isHttps = /^\s*https:/i.test(text);
    return isHttps ? refuse('url_invalid', 'is not a URL') : refuse('url_scheme', 'must begin with https://');
  }
  const list = allowListOf(allow);
  const host = hostOf(url);
  const isListed = list.hasHost(host);
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && (allowInsecure || isListed))) {
    return refuse('url_scheme', 'must begin with https://');
  }
  if (url.username !== '' || url.password !== '') {
    return refuse('url_credentials', 'must not contain a user name or password');
  }
  if (text.includes('#')) return refuse('url_fragment', 'must not have a fragment');
  if (!isPortAllowed(url)) {
    return refuse(
      'url_port',
      'must have port 443, or a port from 1024 up that is not a well-known port of another service',
    );
  }
  // A name may be one of a listed network. The connection shows it.
  const mayBeListed = isListed || (list.hasNetworks && isIP(host) === 0 && !isLocalName(host));
  if (!mayBeListed && !isHostAllowed(host, allowInsecure)) {
    return refuse('url_address', 'must have a host on the public internet');
  }
  if (Buffer.byteLength(url.href) > urlBytesMax) {
    return refuse('url_length', `must have at most ${urlBytesMax} bytes`);
  }
  return { url: url.href };
}

function refuse(code: UrlErrorCode, message: string): CheckedUrl {
  return { error: { code, message } };
}

function isPortAllowed(url: URL): boolean {
  // An empty port is the scheme's default: 443, or 80 if http is allowed.
  if (url.port === '' || url.port === '443') return true;
  const port = Number(url.port);
  return port >= 1_024 && !refusedPorts.has(port);
}

/** RFC 6762, RFC 8375, and names that operators commonly use inside their networks. */
const internalName = /\.(local|localdomain|internal|intranet|lan|corp|home|home\.arpa)$/;

/** An address without its brackets, or a name without its last dots. */
function hostOf({ hostname }: URL): string {
  return hostname.startsWith('[') ? hostname.slice(1, -1) : hostname.replace(/\.+$/, '');
}

const isLocalName = (host: string) => host === 'localhost' || host.endsWith('.localhost');

function isHostAllowed(host: string, allowInsecure: boolean): boolean {
  if (isIP(host) > 0) {
    const addressClass = classifyAddress(host);
    return addressClass === 'public' || (addressClass === 'loopback' && allowInsecure);
  }
  if (isLocalName(host)) return allowInsecure;
  // A single label is never a public name.
  return host.includes('.') && !internalName.test(host);
}
