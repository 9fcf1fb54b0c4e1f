/**
 * What a redirect URI may be, as far as a page can tell while somebody types. The server decides, by
 * `src/clients/redirect_uri.ts`.
 */

const bytesMax = 2_048;
const dangerousSchemes = new Set(['javascript:', 'data:', 'vbscript:', 'file:', 'blob:', 'about:']);

/** @returns what is wrong with it, or null where it is good */
export function redirectFault(text: string, applicationType: string): string | null {
  const url = URL.parse(text);
  if (url === null) return 'This is not a whole URL. It looks like https://app.example/callback.';
  if (new TextEncoder().encode(text).length > bytesMax) return 'It may have 2,048 bytes at most.';
  if (/\s/.test(text)) return 'It must not contain spaces.';
  if (text.includes('*'))
    return 'It is compared as a whole: wildcards do not work. Add one URI for each address.';
  if (text.includes('#')) return 'It must not have a fragment (#…).';
  if (url.username !== '' || url.password !== '') return 'It must not contain a user name or password.';
  if (dangerousSchemes.has(url.protocol)) return `URIs that begin with ${url.protocol} are refused.`;
  if (url.origin === location.origin) return 'This is this server itself: it must lead to your app.';
  if (url.protocol === 'https:') return null;
  if (url.protocol === 'http:') {
    return isLoopback(url.hostname)
      ? null
      : 'It must begin with https://. Plain http is for localhost alone: codes would be sent in the clear.';
  }
  if (applicationType === 'web')
    return 'A web app’s URI begins with https://. Other schemes are for installed apps.';
  return url.protocol.includes('.')
    ? null
    : 'A scheme of your own must be a domain name in reverse, like com.example.app:/callback.';
}

function isLoopback(host: string): boolean {
  return /^(?:localhost|.*\.localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(host);
}

/** @returns what is wrong with an address of a page of the app, or null */
export function pageFault(text: string): string | null {
  if (text.trim() === '') return null;
  const url = URL.parse(text);
  if (url === null) return 'This is not a whole URL. It looks like https://app.example.';
  const isGood = url.protocol === 'https:' || (url.protocol === 'http:' && isLoopback(url.hostname));
  if (!isGood) return 'It must begin with https://.';
  return url.username === '' && url.password === '' ? null : 'It must not contain a user name or password.';
}
