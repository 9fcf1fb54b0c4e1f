/**
 * Login and consent without a browser: follows redirects, keeps cookies and submits the server's forms, like a user without
 * JavaScript.
 */

/** Maximum number of redirects and forms. */
const stepsMax = 20;

/**
 * Walks from the authorization request to the redirect back to the app.
 * @returns the callback URL, with `code` and `state`
 * @throws Error if a page is neither a form nor a redirect
 */
export async function logInAndConfirm(
  start: URL,
  redirectUri: string,
  login: { email: string; password: string },
): Promise<URL> {
  const cookies = new Map<string, string>();
  let request: { url: URL; body?: URLSearchParams } = { url: start };
  for (let step = 0; step < stepsMax; step += 1) {
    const response = await fetch(request.url, {
      method: request.body === undefined ? 'GET' : 'POST',
      redirect: 'manual',
      headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
      ...(request.body === undefined ? {} : { body: request.body }),
    });
    for (const line of response.headers.getSetCookie()) keepCookie(cookies, line);
    const location = response.headers.get('location');
    if (location !== null) {
      const target = new URL(location, request.url);
      if (target.href.startsWith(redirectUri)) return target;
      request = { url: target };
      continue;
    }
    request = fillForm(await response.text(), request.url, login);
  }
  throw new Error('the server did not redirect back to the app');
}

function keepCookie(cookies: Map<string, string>, line: string): void {
  const [pair = '', ...attributes] = line.split(';');
  const [name = '', ...value] = pair.split('=');
  const expired = attributes.some((attribute) => /^\s*(expires=Thu, 01 Jan 1970|max-age=0)/i.test(attribute));
  if (expired) cookies.delete(name.trim());
  else cookies.set(name.trim(), value.join('='));
}

/** Submits the first form of a page: hidden fields, login, first button. */
function fillForm(html: string, page: URL, login: { email: string; password: string }) {
  const form = /<form\b[^>]*>[\s\S]*?<\/form>/i.exec(html)?.[0];
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
  const action = attribute(/<form\b[^>]*>/i.exec(form)?.[0] ?? '', 'action') ?? page.href;
  return { url: new URL(action, page), body };
}

function attribute(tag: string, name: string): string | undefined {
  const value = new RegExp(`\\s${name}="([^"]*)"`, 'i').exec(tag)?.[1];
  return value?.replaceAll('&quot;', '"').replaceAll('&#39;', "'").replaceAll('&amp;', '&');
}
