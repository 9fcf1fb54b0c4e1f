/**
 * Validates a subscriber's URL while the user types. The server decides, and checks the
 * address again at every connection.
 */

export interface UrlOpinion {
  error: string | null;
  /** A warning for URLs that work only in development or if the operator allows it. */
  warning: string | null;
}

const good: UrlOpinion = { error: null, warning: null };
const bytesMax = 2_048;

export function checkUrl(text: string): UrlOpinion {
  if (text.trim() === '') return good;
  const url = URL.parse(text);
  if (url === null) return error('Enter a full URL, such as https://app.example.com/webhooks.');
  if (new TextEncoder().encode(text).length > bytesMax) return error('A URL can have at most 2,048 bytes.');
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return error('Use https://.');
  if (url.username !== '' || url.password !== '') {
    return error('User names and passwords are not allowed. Use a custom header instead.');
  }
  if (text.includes('#')) return error('Fragments (#…) are not allowed.');
  if (url.port !== '' && url.port !== '443' && Number(url.port) < 1_024) {
    return error('Use port 443, or a port from 1024 up.');
  }
  const isLoopback = /^(?:localhost|.*\.localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname);
  const isPublicName = url.hostname.includes('.') || url.hostname.startsWith('[');
  if (isLoopback || !isPublicName || url.protocol === 'http:') {
    const warning =
      'Allowed in development, and for private receivers that the operator listed. Otherwise, use a public https URL.';
    return { error: null, warning };
  }
  return good;
}

function error(text: string): UrlOpinion {
  return { error: text, warning: null };
}
