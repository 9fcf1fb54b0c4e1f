/**
 * The script of the reference page: search, copy buttons, the language of samples, and sending requests. The access token is
 * kept in memory only.
 */

const signIn = document.querySelector('#sign-in');
const problem = document.querySelector('#sign-in-problem');
const search = document.querySelector('#search');
const contents = document.querySelector('#contents');
let token = null;

for (const element of document.querySelectorAll('.search, .try, #sign-in')) element.hidden = false;
// On a narrow screen the contents would hide the reference.
// The server sends it closed: opening it beside the page shifts nothing, closing it above the page would shift everything.
if (matchMedia('(min-width: 60rem)').matches) contents.open = true;

for (const block of document.querySelectorAll('.code')) block.append(copyButton(block.querySelector('code')));

function copyButton(code) {
  const button = Object.assign(document.createElement('button'), {
    type: 'button',
    className: 'copy',
    textContent: 'Copy',
  });
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = 'Copied';
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 1_500);
  });
  return button;
}

document.addEventListener('change', ({ target }) => {
  if (target.type !== 'radio') return;
  for (const other of document.querySelectorAll(`.tabs input[value="${CSS.escape(target.value)}"]`)) {
    other.checked = true;
  }
});

search.addEventListener('input', () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let isAny = false;
  for (const list of contents.querySelectorAll('ul')) {
    let isListShown = false;
    for (const item of list.children) {
      const text = `${item.textContent} ${item.dataset.words ?? ''}`.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      isListShown ||= !item.hidden;
    }
    list.hidden = !isListShown;
    list.previousElementSibling.hidden = !isListShown;
    isAny ||= isListShown;
  }
  document.querySelector('#nothing-found').hidden = isAny;
});
search.addEventListener('keydown', ({ key }) => {
  if (key === 'Enter') contents.querySelector('li:not([hidden]) a')?.click();
});

const links = new Map(
  [...contents.querySelectorAll('a')].map((link) => [link.getAttribute('href').slice(1), link]),
);
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute('aria-current');
      links.get(target.id).setAttribute('aria-current', 'true');
    }
  },
  { rootMargin: '-20% 0px -70% 0px' },
);
for (const section of document.querySelectorAll('.operation'))
  if (links.has(section.id)) observer.observe(section);

const base64url = (bytes) =>
  btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '');
const randomText = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** Authorization code with PKCE in its own window (RFC 7636). The response arrives by a broadcast channel of this origin. */
async function askForToken() {
  const { client, redirect, authorize, token: endpoint } = signIn.dataset;
  const [verifier, state] = [randomText(), randomText()];
  const hash = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  const query = new URLSearchParams({
    response_type: 'code',
    client_id: client,
    redirect_uri: redirect,
    code_challenge: base64url(new Uint8Array(hash)),
    code_challenge_method: 'S256',
    state,
  });
  const channel = new BroadcastChannel('nuncio-docs');
  const answered = new Promise((resolve) => {
    channel.addEventListener('message', ({ data }) => {
      const answer = new URLSearchParams(data);
      // RFC 6749 section 10.12: ignore a response to another request.
      if (answer.get('state') === state) resolve(answer);
    });
  });
  window.open(`${authorize}?${query}`, '_blank', 'noopener');
  const answer = await answered;
  channel.close();
  if (!answer.has('code'))
    throw new Error(answer.get('error_description') ?? answer.get('error') ?? 'not signed in');
  const response = await fetch(endpoint, {
    method: 'POST',
    body: new URLSearchParams({
      grant_type: 'authorization_code',
      client_id: client,
      redirect_uri: redirect,
      code: answer.get('code'),
      code_verifier: verifier,
    }),
  });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error_description ?? body.error);
  return { value: body.access_token, until: Date.now() + body.expires_in * 1_000 };
}

function showSignedIn() {
  const isSignedIn = token !== null && token.until > Date.now();
  signIn.textContent = isSignedIn ? 'Sign out' : 'Sign in';
}

signIn.addEventListener('click', async () => {
  if (token !== null && token.until > Date.now()) {
    token = null;
    showSignedIn();
    return;
  }
  problem.textContent = '';
  try {
    token = await askForToken();
    setTimeout(showSignedIn, token.until - Date.now());
  } catch (error) {
    problem.textContent = `Not signed in: ${error.message}`;
  }
  showSignedIn();
});

for (const form of document.querySelectorAll('.try form')) {
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const button = form.querySelector('button');
    const result = form.parentElement.querySelector('.result');
    if ('needsToken' in form.dataset && !(token !== null && token.until > Date.now())) {
      result.replaceChildren(paragraph('Sign in first, with the button at the top of the page.'));
      return;
    }
    button.disabled = true;
    try {
      result.replaceChildren(...(await showResponse(await sendForm(form))));
    } catch (error) {
      result.replaceChildren(paragraph(`The request could not be sent: ${error.message}`));
    } finally {
      button.disabled = false;
    }
  });
}

function sendForm(form) {
  const { method, path, type } = form.dataset;
  const query = new URLSearchParams();
  const headers = new Headers();
  let place = path;
  for (const { name, value, dataset } of form.querySelectorAll('input')) {
    if (value === '') continue;
    if (dataset.in === 'path') place = place.replace(`{${name}}`, encodeURIComponent(value));
    else if (dataset.in === 'query') query.set(name, value);
    else headers.set(name, value);
  }
  if ('needsToken' in form.dataset) headers.set('Authorization', `Bearer ${token.value}`);
  const body = form.querySelector('textarea')?.value;
  if (body !== undefined) headers.set('Content-Type', type);
  const url = query.size > 0 ? `${place}?${query}` : place;
  return fetch(url, {
    method: method.toUpperCase(),
    headers,
    cache: 'no-store',
    ...(body === undefined ? {} : { body }),
  });
}

async function showResponse(response) {
  const text = await response.text();
  const line = paragraph(`${response.status} ${response.statusText}`);
  if (text === '') return [line];
  const pre = Object.assign(document.createElement('pre'), { tabIndex: 0 });
  const code = document.createElement('code');
  code.textContent = readable(text);
  pre.append(code);
  const block = Object.assign(document.createElement('div'), { className: 'code' });
  block.append(pre, copyButton(code));
  return [line, block];
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function paragraph(text) {
  return Object.assign(document.createElement('p'), { textContent: text });
}
