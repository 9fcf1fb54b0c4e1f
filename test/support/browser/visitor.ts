/** A browser for an app's pages: stores cookies and follows nothing by itself. */

import { once } from 'node:events';
import { get, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';

export interface Visited {
  status: number | undefined;
  headers: IncomingHttpHeaders;
  body: string;
}

/** `fetch` is not usable here, because its Sec-Fetch-Mode header says that the request is not a navigation. */
export function createVisitor(): (url: string | URL) => Promise<Visited> {
  const cookies = new Map<string, string>();
  return async (url) => {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const request = get(url, { headers: { cookie, accept: 'text/html, */*;q=0.5' } });
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    for (const line of response.headers['set-cookie'] ?? []) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      cookies.set(name, value);
    }
    return { status: response.statusCode, headers: response.headers, body: await text(response) };
  };
}
