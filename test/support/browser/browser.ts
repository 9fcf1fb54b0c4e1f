/**
 * A minimal browser for the protocol's pages: stores cookies by path, follows redirects within the server,
 * reads and submits forms.
 */

interface Cookie {
  name: string;
  value: string;
  path: string;
}

export interface Form {
  action: string;
  method: string;
  fields: Record<string, string>;
  /** Names and values of the form's buttons. */
  buttons: [name: string, value: string][];
}

export class TestBrowser {
  readonly #origin: string;
  #cookies: Cookie[] = [];

  constructor(baseUrl: string) {
    this.#origin = new URL(baseUrl).origin;
  }

  get cookies(): readonly Cookie[] {
    return this.#cookies;
  }

  setCookie(name: string, value: string, path = '/'): void {
    this.#cookies = this.#cookies.filter((cookie) => cookie.name !== name || cookie.path !== path);
    this.#cookies.push({ name, value, path });
  }

  /** One request, no redirect followed. */
  async request(url: string, init: RequestInit = {}): Promise<Response> {
    const { pathname } = new URL(url);
    const cookie = this.#cookies
      .filter(({ path }) => pathname === path || pathname.startsWith(path.endsWith('/') ? path : `${path}/`))
      .map(({ name, value }) => `${name}=${value}`)
      .join('; ');
    const headers = new Headers(init.headers);
    if (cookie !== '') headers.set('cookie', cookie);
    const response = await fetch(url, { ...init, headers, redirect: 'manual' });
    for (const line of response.headers.getSetCookie()) this.#keep(line, pathname);
    return response;
  }

  /** Follows redirects within the server. Returns the final page, or the first redirect to another host. */
  async open(url: string, init: RequestInit = {}): Promise<Page> {
    let response = await this.request(url, init);
    let at = url;
    for (let redirects = 0; redirects < 10; redirects += 1) {
      const location = response.headers.get('location');
      if (location === null) return { url: at, response, text: await response.text(), leftTo: null };
      const next = new URL(location, at);
      if (next.origin !== this.#origin) {
        return { url: at, response, text: await response.text(), leftTo: next };
      }
      await response.arrayBuffer();
      at = next.href;
      response = await this.request(at);
    }
    throw new Error(`too many redirects, the last to ${at}`);
  }

  /** Submits a form of the page, with the given values replacing its own. */
  async submit(page: Page, values: Record<string, string>, index = 0): Promise<Page> {
    const form = formsOf(page.text)[index];
    if (form === undefined) throw new Error(`no form on ${page.url}: ${page.text.slice(0, 500)}`);
    return this.open(new URL(form.action === '' ? page.url : form.action, page.url).href, {
      method: form.method,
      body: new URLSearchParams({ ...form.fields, ...values }),
    });
  }

  #keep(line: string, requestPath: string): void {
    const [pair = '', ...attributes] = line.split('; ');
    const at = pair.indexOf('=');
    const attribute = (name: string) =>
      attributes.find((text) => text.toLowerCase().startsWith(`${name}=`))?.slice(name.length + 1);
    const path = attribute('path') ?? requestPath.slice(0, requestPath.lastIndexOf('/') + 1);
    const name = pair.slice(0, at);
    const value = pair.slice(at + 1);
    this.#cookies = this.#cookies.filter((cookie) => cookie.name !== name || cookie.path !== path);
    const expires = attribute('expires');
    const isGone = value === '' || (expires !== undefined && Date.parse(expires) < Date.now());
    if (!isGone) this.#cookies.push({ name, value, path });
  }
}

export interface Page {
  url: string;
  response: Response;
  text: string;
  /** The target of the last redirect, if it leaves the server. */
  leftTo: URL | null;
}

export function formsOf(text: string): Form[] {
  return [...text.matchAll(/<form\b([^>]*)>([\s\S]*?)<\/form>/g)].map(([, head = '', body = '']) => {
    const fields: Record<string, string> = {};
    for (const [tag] of body.matchAll(/<input\b[^>]*>/g)) {
      const name = attributeOf(tag, 'name');
      if (name !== undefined) fields[name] = attributeOf(tag, 'value') ?? '';
    }
    const buttons = [...body.matchAll(/<button\b[^>]*>/g)].map(([tag]): [string, string] => [
      attributeOf(tag, 'name') ?? '',
      attributeOf(tag, 'value') ?? '',
    ]);
    return {
      action: attributeOf(head, 'action') ?? '',
      method: (attributeOf(head, 'method') ?? 'get').toUpperCase(),
      fields,
      buttons,
    };
  });
}

function attributeOf(tag: string, name: string): string | undefined {
  const value = new RegExp(`\\s${name}="([^"]*)"`).exec(tag)?.[1];
  return value
    ?.replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>')
    .replaceAll('&quot;', '"')
    .replaceAll('&#39;', "'")
    .replaceAll('&amp;', '&');
}
