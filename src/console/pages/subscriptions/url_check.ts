/**
 * What a subscriber's URL may be, as far as a page can tell while somebody types. The server decides, and checks the
 * address again at every connection.
 */

export interface UrlOpinion {
  fault: string | null;
  /** Something that is right on a developer's machine and wrong anywhere else. */
  warning: string | null;
}

const good: UrlOpinion = { fault: null, warning: null };
const bytesMax = 2_048;

export function checkUrl(text: string): UrlOpinion {
  if (text.trim() === '') return good;
  const url = URL.parse(text);
  if (url === null) return fault('This is not a URL. It begins with https:// and has a host.');
  if (new TextEncoder().encode(text).length > bytesMax) return fault('It may have 2,048 bytes at most.');
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return fault('It must begin with https://');
  if (url.username !== '' || url.password !== '') {
    return fault('It must not contain a user name or password. Use a header of your own instead.');
  }
  if (text.includes('#')) return fault('It must not have a fragment (#…).');
  if (url.port !== '' && url.port !== '443' && Number(url.port) < 1_024) {
    return fault('The port may be 443, or 1024 and up.');
  }
  const isLoopback = /^(?:localhost|.*\.localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname);
  if (!isLoopback && !url.hostname.includes('.') && !url.hostname.startsWith('[')) {
    return fault('The host must be on the public internet, like app.example.com.');
  }
  if (isLoopback || url.protocol === 'http:') {
    return { fault: null, warning: 'Taken in development alone: elsewhere it must be https and public.' };
  }
  return good;
}

function fault(text: string): UrlOpinion {
  return { fault: text, warning: null };
}
