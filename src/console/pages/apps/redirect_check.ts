/** What a redirect URI may be, as far as a page can tell while somebody types. The server decides. */

/** @returns what is wrong, or null */
export function redirectUriFault(text: string): string | null {
  if (text.trim() === '') return null;
  const url = URL.parse(text);
  if (url === null) return 'This is not a URL. It begins with https:// and has a host and a path.';
  if (text.includes('#')) return 'It must not have a fragment (#…).';
  if (url.username !== '' || url.password !== '') return 'It must not contain a user name or password.';
  if (text.includes('*')) return 'It has no wildcards: an answer goes to exactly this address.';
  if (url.protocol === 'https:') return null;
  if (url.protocol === 'http:') {
    return /^(?:localhost|127\.0\.0\.1|\[::1\])$/.test(url.hostname)
      ? null
      : 'It must be https: http is for localhost alone.';
  }
  // RFC 8252 section 7.1: the scheme of an installed app is a domain of its maker, in reverse.
  return url.protocol.includes('.')
    ? null
    : 'The scheme of an installed app has a dot in it, like com.example.app:/';
}
