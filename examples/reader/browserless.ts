/**
 * Login and consent without a browser: follows redirects, keeps cookies and submits the server's forms, like a user without
 * JavaScript.
 */

/** Maximum number of redirects and forms. */
const stepsMax = 20;

export interface Login {
  email: string;
  password: string;
}

interface Step {
  url: URL;
  body?: URLSearchParams;
}

/** A user with a browser of their own, who stays signed in. */
export class Visitor {
  readonly #cookies = new Map<string, string>();
  readonly #login: Login;

  constructor(login: Login) {
    this.#login = login;
  }

  /**
   * Walks from the authorization request to the redirect back to the app.
   * @returns the callback URL, with `code` and `state`
   * @throws Error if a page is neither a form nor a redirect
   */
  async logInAndConfirm(start: URL, redirectUri: string): Promise<URL> {
    let next: Step = { url: start };
    for (let step = 0; step < stepsMax; step += 1) {
      const response = await this.#send(next);
      const target = targetOf(response, next.url);
      if (target?.href.startsWith(redirectUri)) return target;
      next = target === undefined ? fillForm(await response.text(), next.url, this.#login) : { url: target };
    }
    throw new Error('the server did not redirect back to the app');
  }

  /**
   * Opens a page and submits one of its forms.
   * @param action path of the form
   */
  async submit(page: URL, action: string): Promise<void> {
    const shown = await (await this.#send({ url: page })).text();
    const response = await this.#send(fillForm(shown, page, this.#login, action));
    if (response.status >= 400) throw new Error(`${action} responded with status ${response.status}`);
  }

  async #send({ url, body }: Step): Promise<Response> {
    const response = await fetch(url, {
      method: body === undefined ? 'GET' : 'POST',
      redirect: 'manual',
      headers: { cookie: [...this.#cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
      ...(body === undefined ? {} : { body }),
    });
    for (const line of response.headers.getSetCookie()) keepCookie(this.#cookies, line);
    return response;
  }
}

/** Where a redirect leads to; undefined for a page. */
function targetOf(response: Response, from: URL): URL | undefined {
  const location = response.headers.get('location');
  return location === null ? undefined : new URL(location, from);
}

function keepCookie(cookies: Map<string, string>, line: string): void {
  const [pair = '', ...attributes] = line.split(';');
  const [name = '', ...value] = pair.split('=');
  const expired = attributes.some((attribute) => /^\s*(expires=Thu, 01 Jan 1970|max-age=0)/i.test(attribute));
  if (expired) cookies.delete(name.trim());
  else cookies.set(name.trim(), value.join('='));
}

/** Submits the first form of a page, or the first with this action: hidden fields, login, first button. */
function fillForm(html: string, page: URL, login: Login, action?: string): Required<Step> {
  const forms = html.match(/<form\b[^>]*>[\s\S]*?<\/form>/gi) ?? [];
  const form = forms.find((each) => action === undefined || attribute(each, 'action') === action);
  if (form === undefined) throw new Error(`no form at ${page.pathname}:\n${html}`);
  const body = new URLSearchParams();
  let isPressed = false;
  for (const [tag] of form.matchAll(/<(?:input|button)\b[^>]*>/gi)) {
    const name = attribute(tag, 'name');
    if (name === undefined) continue;
    const isButton = /^<button/i.test(tag) || attribute(tag, 'type') === 'submit';
    if (isButton && isPressed) continue;
    isPressed ||= isButton;
    if (attribute(tag, 'type') === 'checkbox' && !/\schecked\b/i.test(tag)) continue;
    body.append(name, attribute(tag, 'value') ?? '');
  }
  if (body.has('email')) body.set('email', login.email);
  if (body.has('password')) body.set('password', login.password);
  const target = attribute(/<form\b[^>]*>/i.exec(form)?.[0] ?? '', 'action') ?? page.href;
  return { url: new URL(target, page), body };
}

function attribute(tag: string, name: string): string | undefined {
  const value = new RegExp(`\\s${name}="([^"]*)"`, 'i').exec(tag)?.[1];
  return value?.replaceAll('&quot;', '"').replaceAll('&#39;', "'").replaceAll('&amp;', '&');
}
