/** The operator's brand: it is on every page that users see, and the name Nuncio is on none. */

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { createUnsubscribeTokens } from '../../src/notices/unsubscribe.ts';
import { createPlatform, loadPlatform, PlatformError } from '../../src/platform.ts';
import { readBrand } from '../../src/web/brand.ts';
import { brandStylesheet, consoleStylesheet, contrast } from '../../src/web/brand_colors.ts';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';

const folder = mkdtempSync(join(tmpdir(), 'nuncio-brand-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const logo = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>';
writeFileSync(join(folder, 'logo.svg'), logo);
const declared = {
  name: 'Acme & <b>Söhne</b>',
  logo: 'logo.svg',
  color: '#ffee00',
  support_url: 'mailto:help@acme.example',
  privacy_url: 'https://acme.example/privacy?a=1&b=2',
  terms_url: 'https://acme.example/terms',
};
const shownName = 'Acme &amp; &lt;b&gt;Söhne&lt;/b&gt;';
const brand = readBrand(declared, folder, (place, reason) => assert.fail(`${place}: ${reason}`));
const platform = { ...(await loadPlatform(null)), brand };
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
const deviceGrant = 'urn:ietf:params:oauth:grant-type:device_code';
const app = await createTestClient(server, {
  name: 'Reader',
  scopes: ['openid', 'read:posts'],
  grantTypes: ['authorization_code', 'refresh_token', deviceGrant],
});
const open = (path: string, browser = new TestBrowser(server.baseUrl)) =>
  browser.open(path.startsWith('http') ? path : server.baseUrl + path);

function check(what: string, page: Page): Page {
  const { text, response } = page;
  const { headers } = response;
  assert.match(headers.get('content-type') ?? '', /text\/html/, `${what}: ${text}`);
  assert.doesNotMatch(text, /nuncio/i, what);
  assert.match(text, new RegExp(`<title>[^<]* · ${shownName}</title>`), what);
  assert.ok(text.includes('<link rel="stylesheet" href="/assets/brand.css">'), what);
  assert.ok(!text.includes('<b>Söhne'), what);
  const policy = headers.get('content-security-policy') ?? '';
  assert.match(policy, /default-src 'none'/, what);
  assert.doesNotMatch(policy, /unsafe-inline/, what);
  return page;
}

/** Checks the frame of the server's pages: logo and links. */
function checkFrame(what: string, page: Page): Page {
  check(what, page);
  assert.ok(page.text.includes('<img src="/assets/brand-logo" alt="">'), what);
  assert.ok(page.text.includes('href="mailto:help@acme.example"'), what);
  assert.ok(page.text.includes('href="https://acme.example/privacy?a=1&amp;b=2"'), what);
  assert.ok(page.text.includes('href="https://acme.example/terms"'), what);
  return page;
}

function authorizeUrl(parameters: Record<string, string> = {}): string {
  return authorizationUrl(server, app, {
    scope: 'openid read:posts',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
}

test('every user-facing page has the operator’s name and never the server’s', async () => {
  checkFrame('front page', await open('/'));
  checkFrame('no such page', await open('/nowhere', acceptingHtml()));
  checkFrame('account link that is used', await open('/account/link?code=x'));
  checkFrame('error', await open(authorizeUrl({ client_id: 'nobody' })));
  checkFrame('wrong redirect URI', await open(authorizeUrl({ redirect_uri: 'https://evil.example/' })));
  checkFrame('expired', await open('/interaction/none'));

  const browser = new TestBrowser(server.baseUrl);
  const login = checkFrame('login', await open(authorizeUrl(), browser));
  const wrong = { email: account.email, password: 'wrong', action: 'login' };
  checkFrame('login refused', await browser.submit(login, wrong));
  const right = { ...wrong, password: account.password };
  const consent = checkFrame('consent', await browser.submit(login, right));
  checkFrame('another user', await browser.submit(consent, { action: 'switch' }));
  const other = await createTestAccount(server);
  const forged = await browser.request(consent.url, {
    method: 'POST',
    body: new URLSearchParams({ form_token: 'x' }),
  });
  checkFrame('form that was not made here', {
    url: consent.url,
    response: forged,
    text: await forged.text(),
    leftTo: null,
  });
  const switching = await browser.submit(consent, {
    email: other.email,
    password: other.password,
    action: 'login',
  });
  check('form that submits itself', switching);

  const own = new TestBrowser(server.baseUrl);
  const signIn = checkFrame('account, signed out', await open('/account', own));
  checkFrame('account', await own.submit(signIn, { email: account.email, password: account.password }));
  const token = createUnsubscribeTokens(testSecret).make(account.id, 'recovered');
  const asked = checkFrame('stop mails?', await open(`/account/unsubscribe?token=${token}`));
  checkFrame('mails stopped', await own.open(asked.url, { method: 'POST' }));
  checkFrame('account with notices', await open('/account', own));
  checkFrame('invalid link', await open('/account/unsubscribe'));
  const logout = checkFrame('sign out?', await open('/oauth/logout', own));
  checkFrame('signed out', await own.submit(logout, { logout: 'yes' }));
});

test('the device pages have the operator’s name', async () => {
  const started = await postForm(server, '/oauth/device', app, { scope: 'read:posts' });
  const browser = new TestBrowser(server.baseUrl);
  const input = checkFrame('code', await open('/device', browser));
  const policy = input.response.headers.get('content-security-policy') ?? '';
  assert.match(policy, /img-src 'self' data:/, 'logo and icon are shown');
  checkFrame('wrong code', await browser.submit(input, { user_code: 'BBBB-BBBB' }));
  const confirm = checkFrame(
    'confirmation',
    await browser.submit(input, { user_code: String(started.body.user_code) }),
  );
  checkFrame('refused', await browser.submit(confirm, { abort: 'yes' }));
  const again = await postForm(server, '/oauth/device', app, { scope: 'read:posts' });
  const second = await browser.submit(await open('/device', browser), {
    user_code: String(again.body.user_code),
  });
  const login = checkFrame('login of a device', await browser.submit(second, {}));
  const consent = await browser.submit(login, {
    email: account.email,
    password: account.password,
    action: 'login',
  });
  checkFrame('device connected', await browser.submit(consent, { action: 'allow' }));
});

test('a self-registered app continues by a page of the operator', async () => {
  const response = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ client_name: 'Own', redirect_uris: ['https://own.example/callback'] }),
  });
  const { client_id: id } = (await response.json()) as { client_id: string };
  const url = authorizeUrl({
    client_id: id,
    redirect_uri: 'https://own.example/callback',
    prompt: 'none',
    scope: 'read:posts',
  });
  checkFrame('leaving', await open(url));
});

test('the console, the reference and the metadata carry the name', async () => {
  const shell = await (await fetch(`${server.baseUrl}/console`)).text();
  assert.ok(shell.includes(`<title>${shownName} console</title>`), shell);
  assert.ok(shell.includes(`data-name="${shownName}"`) && shell.includes('data-logo="/assets/brand-logo"'));
  assert.doesNotMatch(shell, /nuncio/i);
  const reference = await (await fetch(`${server.baseUrl}/docs/`)).text();
  assert.ok(reference.includes(`<title>${shownName} API reference</title>`));
  for (const [path, read] of [
    ['/openapi.json', (body: { info: { title: string } }) => body.info.title],
    ['/.well-known/oauth-protected-resource', (body: { resource_name: string }) => body.resource_name],
  ] as const) {
    assert.equal(read((await (await fetch(server.baseUrl + path)).json()) as never), declared.name, path);
  }
  const asyncApi = (await (await fetch(`${server.baseUrl}/asyncapi.json`)).json()) as {
    info: { title: string };
  };
  assert.equal(asyncApi.info.title, `${declared.name} events`);
});

test('console and reference have the operator’s icon and colours, without an inline style', async () => {
  for (const [path, stylesheet] of [
    ['/console', '/assets/brand-console.css'],
    ['/console/apps', '/assets/brand-console.css'],
    ['/docs/', '/assets/brand.css'],
    ['/', '/assets/brand.css'],
  ] as const) {
    const response = await fetch(server.baseUrl + path);
    const head = (await response.text()).split('</head>', 1)[0] as string;
    assert.ok(head.includes('<link rel="icon" href="/assets/brand-logo" type="image/svg+xml">'), path);
    assert.equal(head.match(/rel="icon"/g)?.length, 1, path);
    assert.equal(head.match(/<meta name="theme-color" content="#[0-9a-f]{6}"/g)?.length, 2, path);
    // It follows the page's own style sheet, which it overrides.
    assert.equal(
      head
        .match(/<link rel="stylesheet"[^>]*href="([^"]+)"/g)
        ?.at(-1)
        ?.includes(stylesheet),
      true,
    );
    assert.doesNotMatch(head, /<style|style="/, path);
    const policy = response.headers.get('content-security-policy') ?? '';
    assert.match(policy, /style-src 'self'(;|$)/, path);
    assert.equal((await fetch(server.baseUrl + stylesheet)).status, 200);
  }
});

test('without a logo the icon is the first letter of the name, in its colour', async (t) => {
  for (const [given, letter, color, ink] of [
    [{ name: '<élan & co', color: '#ffee00' }, '&lt;', '#ffee00', '#000000'],
    [{ name: 'élan' }, 'É', '#3949c6', '#ffffff'],
  ] as const) {
    const own = readBrand(given, folder, (place, reason) => assert.fail(`${place}: ${reason}`));
    const other = await startTestServer(t, {}, 'dev', { ...platform, brand: own });
    const page = await (await fetch(`${other.baseUrl}/console`)).text();
    assert.ok(page.includes('<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">'), page);
    assert.equal(page.includes('brand-console.css'), given.color !== undefined);
    const icon = await fetch(`${other.baseUrl}/assets/icon.svg`);
    assert.equal(icon.headers.get('content-type'), 'image/svg+xml');
    assert.match(icon.headers.get('content-security-policy') ?? '', /default-src 'none'.*sandbox/);
    const text = await icon.text();
    assert.ok(text.includes(`fill="${color}"`) && text.includes(`fill="${ink}">${letter}</text>`), text);
    assert.doesNotMatch(text, /nuncio/i);
  }
});

test('the console is readable in both themes with any brand colour', () => {
  const grounds = {
    light: ['#ffffff', '#f6f7fa', '#f1f3f7', '#eef0f6'],
    dark: ['#171a22', '#0f1117', '#1e222c', '#12151c', '#222733'],
  };
  const soft = { light: '#5a6275', dark: '#a3abbd' };
  for (const color of hostileColors) {
    const tokens = new Map(
      [...consoleStylesheet(color).matchAll(/--([a-z-]+):light-dark\((#[0-9a-f]{6}),(#[0-9a-f]{6})\)/gi)].map(
        ([, name = '', light = '', dark = '']) => [name, { light, dark }],
      ),
    );
    assert.equal(tokens.size, 5, color);
    for (const look of ['light', 'dark'] as const) {
      const of = (name: string) => tokens.get(name)?.[look] ?? '';
      const reads = (one: string, other: string, least = 4.5) =>
        assert.ok(contrast(one, other) >= least, `${color}, ${look}: ${one} on ${other}`);
      for (const ground of grounds[look]) {
        reads(of('accent'), ground);
        reads(of('accent-strong'), ground);
      }
      reads(of('accent-strong'), of('accent-ground'));
      reads(soft[look], of('accent-ground'));
      reads(of('on-accent'), of('accent'));
      reads(of('on-accent'), of('accent-strong'));
      reads('#ffffff', of('accent-fill'), 3);
      reads(grounds[look][0] as string, of('accent-fill'), 2);
    }
  }
});

test('the console’s style sheet has the grounds that the brand colour is checked on', () => {
  const text = readFileSync(join(import.meta.dirname, '../../src/console/styles/tokens.css'), 'utf8');
  for (const [token, light, dark] of [
    ['surface', '#ffffff', '#171a22'],
    ['ground', '#f6f7fa', '#0f1117'],
    ['raised', '#ffffff', '#1e222c'],
    ['sunken', '#f1f3f7', '#12151c'],
    ['hover', '#eef0f6', '#222733'],
    ['soft', '#5a6275', '#a3abbd'],
  ] as const) {
    assert.ok(text.includes(`--${token}: light-dark(${light}, ${dark});`), token);
  }
  const own = [...text.matchAll(/--((?:on-)?accent[a-z-]*): /g)].map(([, name = '']) => name);
  const ours = [...consoleStylesheet('#3949c6').matchAll(/--([a-z-]+):/g)].map(([, name = '']) => name);
  assert.deepEqual(ours.sort(), own.sort());
});

test('no page has the server’s name in its source', async () => {
  const found: string[] = [];
  for await (const path of glob('src/{web,console}/**/*.{ts,tsx,html,css,svg,js}')) {
    const code = readFileSync(path, 'utf8')
      .replaceAll(/\/\*[\s\S]*?\*\//g, '')
      .replaceAll(/^\s*\/\/.*$/gm, '');
    // Header names are part of the protocol.
    if (/\bNuncio\b(?!-)/.test(code)) found.push(path);
  }
  assert.deepEqual(found.sort(), ['src/console/ui/brand.ts', 'src/web/brand.ts']);
});

test('logo and colour come from this origin, and a logo runs no code', async () => {
  const picture = await fetch(`${server.baseUrl}/assets/brand-logo`);
  assert.equal(picture.headers.get('content-type'), 'image/svg+xml');
  assert.match(picture.headers.get('content-security-policy') ?? '', /default-src 'none'.*sandbox/);
  assert.equal(picture.headers.get('x-content-type-options'), 'nosniff');
  assert.equal(await picture.text(), logo);
  const css = await fetch(`${server.baseUrl}/assets/brand.css`);
  assert.match(css.headers.get('content-type') ?? '', /text\/css/);
  assert.equal(await css.text(), brandStylesheet('#ffee00'));
});

const hostileColors = [
  ...['#ffffff', '#000000', '#ffee00', '#3949c6', '#808080', '#ff0000', '#00ff00', '#777777', '#0000FF'],
  ...['#171a22', '#f6f7fa', '#222733', '#00ffff', '#ff00ff', '#2b2b00'],
];

test('text is readable in and on any brand colour', () => {
  for (const color of hostileColors) {
    const accents = [
      ...brandStylesheet(color).matchAll(/--accent:(#[0-9a-f]{6});--on-accent:(#[0-9a-f]{6})/gi),
    ];
    assert.equal(accents.length, 2, color);
    for (const [index, [, accent = '', on = '']] of accents.entries()) {
      for (const ground of index === 0 ? ['#ffffff', '#f4f5f8'] : ['#1c1f29', '#12141b']) {
        assert.ok(contrast(accent, ground) >= 4.5, `${color} as ${accent} on ${ground}`);
      }
      assert.ok(contrast(accent, on) >= 4.5, `${on} on ${accent}`);
    }
  }
  assert.ok(
    brandStylesheet('#3949c6').includes('--accent:#3949c6;--on-accent:#ffffff'),
    'a readable one stays',
  );
});

test('a brand that cannot be displayed is refused with its place', () => {
  writeFileSync(join(folder, 'page.html'), '<html></html>');
  writeFileSync(join(folder, 'large.svg'), `<svg>${' '.repeat(262_144)}</svg>`);
  for (const [bad, place] of [
    [{ name: '' }, 'brand.name'],
    [{ name: 'a\nb' }, 'brand.name'],
    [{ name: 'x'.repeat(61) }, 'brand.name'],
    [{ color: 'red' }, 'brand.color'],
    [{ color: '#fff;}' }, 'brand.color'],
    [{ color: '#ffffff\n}' }, 'brand.color'],
    [{ color: '#12345g' }, 'brand.color'],
    [{ color: 0xffffff }, 'brand.color'],
    [{ logo: 'none.png' }, 'brand.logo'],
    [{ logo: 'page.html' }, 'brand.logo'],
    [{ logo: 'large.svg' }, 'brand.logo'],
    [{ logo: 'https://acme.example/logo.png' }, 'brand.logo'],
    [{ support_url: 'javascript:alert(1)' }, 'brand.support_url'],
    [{ privacy_url: 'mailto:a@b.example' }, 'brand.privacy_url'],
    [{ terms_url: 'http://acme.example/' }, 'brand.terms_url'],
    [{ colour: '#ffffff' }, 'brand.colour'],
  ] as const) {
    assert.throws(
      () => createPlatform({ brand: bad as never }, '', folder),
      (error) => error instanceof PlatformError && error.problems[0]?.startsWith(`${place}:`) === true,
      JSON.stringify(bad),
    );
  }
});

/** Sends an `Accept` header with HTML, as a browser does when it follows a link. */
function acceptingHtml(): TestBrowser {
  const browser = new TestBrowser(server.baseUrl);
  const request = browser.request.bind(browser);
  browser.request = (url, init = {}) => request(url, { ...init, headers: { accept: 'text/html' } });
  return browser;
}
