/**
 * Validates a redirect URI while the user types. The server decides, in
 * `src/clients/redirect_uri.ts`.
 */

const bytesMax = 2_048;
const dangerousSchemes = new Set(['javascript:', 'data:', 'vbscript:', 'file:', 'blob:', 'about:']);

/** @returns the error, or null if it is valid */
export function redirectUriError(text: string, applicationType: string): string | null {
  const url = URL.parse(text);
  if (url === null) return 'Enter a full URL, such as https://app.example/callback.';
  if (new TextEncoder().encode(text).length > bytesMax) return 'A URI can have at most 2,048 bytes.';
  if (/\s/.test(text)) return 'Spaces are not allowed.';
  if (text.includes('*')) return 'Wildcards are not supported. Add each URI in full.';
  if (text.includes('#')) return 'Fragments (#…) are not allowed.';
  if (url.username !== '' || url.password !== '') return 'User names and passwords are not allowed.';
  if (dangerousSchemes.has(url.protocol)) return `URIs that begin with ${url.protocol} are not allowed.`;
  if (url.origin === location.origin)
    return 'This is an address of this server. Enter an address of your app.';
  if (url.protocol === 'https:') return null;
  if (url.protocol === 'http:') {
    return isLoopback(url.hostname) ? null : 'Use https://. Plain http is allowed for localhost only.';
  }
  if (applicationType === 'web') return 'A web app must use https://. Other schemes are for installed apps.';
  return url.protocol.includes('.')
    ? null
    : 'A custom scheme must be a reversed domain name, such as com.example.app:/callback.';
}

function isLoopback(host: string): boolean {
  return /^(?:localhost|.*\.localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(host);
}

/** @returns the error of a page's URL, or null */
export function pageUrlError(text: string): string | null {
  if (text.trim() === '') return null;
  const url = URL.parse(text);
  if (url === null) return 'Enter a full URL, such as https://app.example.';
  const isGood = url.protocol === 'https:' || (url.protocol === 'http:' && isLoopback(url.hostname));
  if (!isGood) return 'Use https://.';
  return url.username === '' && url.password === '' ? null : 'User names and passwords are not allowed.';
}
