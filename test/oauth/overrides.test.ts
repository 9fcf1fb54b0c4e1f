/**
 * What Nuncio replaces and uses of oidc-provider beyond its documentation, compared with the installed version. When an upgrade
 * fails here, read what has changed in the member, adapt the override or delete it, then update the digest.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Provider } from 'oidc-provider';
import { memberAt, overrides } from '../../src/oauth/overrides.ts';

/** Digests of the original sources, by the path of the override. */
const replaced: Readonly<Record<string, string>> = {
  'Client.find': '-efs0F9fd1xkoSkg',
  'Client.prototype.compareClientSecret': 'ekBPnCWZWwF5bC9O',
  'Client.prototype.grantTypeAllowed': 'RCUcC8ANQ-jUHAYv',
  'Client.prototype.responseTypeAllowed': 'kOKpFF_TKMHs3mHu',
  'Client.prototype.redirectUriAllowed': 'Qza3hYROOQO2T-AH',
  'Client.prototype.backchannelLogout': 'xNTwEmUgQAZ7Qmqe',
  'ClientKeys.add': 'm0MXlJDiyfX4NzdX',
  'ClientKeys.clear': 'oosK67SixB2KBsqV',
  'ClientKeys.refresh': 'H0F_2q-Puj-zqr5P',
  'ClientKeys.selectForVerify': 'Nrzcn2LYAeVifHGQ',
  'Session.prototype.authTime': 'mbZWuzSwTAd0M_Ok',
  'Session.prototype.persist': '7yK9rFCMqbGikgl5',
  'Session.prototype.save': '-N32qP4m0x4pn2_E',
  'AccessToken.prototype.generateTokenId': 'J224PDW3TzwCOrCG',
  'ClientCredentials.prototype.generateTokenId': 'J224PDW3TzwCOrCG',
  'RefreshToken.prototype.generateTokenId': 'I5iclctxyPoRFd1k',
  'ReplayDetection.unique': 'JvCHKlXjNfHgs0kq',
};

/** Digests of undocumented members that are called or read but not replaced. */
const used: Readonly<Record<string, string>> = {
  // login_session.ts calls them.
  'Session.prototype.loginAccount': 'JNPioxl403t6fK34',
  'Session.prototype.resetIdentifier': 'VtkPlr6caEWX2tsx',
  'Session.prototype.sidFor': '_wGb10A1n4vS7AWK',
  // Calls the adapter first, outside of its error handling: bindInteractions and filterRefreshScopes rely on it.
  'Interaction.find': '_VyuGC3PDC0cSb9L',
  'RefreshToken.find': 'd3TpvxnExLNaM23t',
  // Calls the adapter with the id.
  'Interaction.prototype.destroy': '80q0d3E0mLB534T0',
};

/** Texts of oidc-provider's sources that other files rely on. */
const texts: readonly (readonly [file: string, text: string])[] = [
  // provider_client.ts and registration/account_app.ts pass the context.
  ['models/client.js', 'constructor(metadata, ctx, { cimd } = {}) {'],
  // client_keys.ts replaces the methods that these lines call. An error of the second refuses the fetched set.
  ['helpers/jwt.js', 'keystore.selectForVerify({ alg: protectedHeader.alg, kid: protectedHeader.kid });'],
  ['models/client.js', '.forEach(ClientKeyStore.prototype.add.bind(this));'],
  ['models/client.js', 'this.clear();'],
  // interaction_binding.ts finds the interaction in the context when its row is deleted.
  ['actions/authorization/resume.js', "ctx.oidc.entity('Interaction', interactionSession);"],
  // provider_client.ts and registration/metadata_document.ts set it.
  ['shared/authorization_error_handler.js', 'noclient'],
];

const provider = new Provider('http://localhost:3000');

for (const [kind, digests] of Object.entries({ replaced, used })) {
  test(`members of oidc-provider that are ${kind} are those of the version that Nuncio was written for`, () => {
    const found = Object.keys(digests).map((path) => [path, digestAt(path)]);
    assert.deepEqual(Object.fromEntries(found), digests);
  });
}

test('every override of oidc-provider has a digest', () => {
  assert.deepEqual(Object.keys(overrides).sort(), Object.keys(replaced).sort());
});

test('the response modes of oidc-provider are registered by the method that is overridden', () => {
  const registered: string[] = [];
  class Recorder extends Provider {
    override registerResponseMode(...[name, handler]: Parameters<Provider['registerResponseMode']>): void {
      registered.push(name);
      assert.equal(handler.length, 3);
      super.registerResponseMode(name, handler);
    }
  }
  new Recorder('http://localhost:3000');
  assert.deepEqual(registered.sort(), ['form_post', 'fragment', 'query']);
});

for (const [file, text] of texts) {
  test(`oidc-provider's ${file} contains ${text}`, () => {
    const url = new URL(file, import.meta.resolve('oidc-provider'));
    assert.ok(readFileSync(url, 'utf8').includes(text));
  });
}

test('package.json pins oidc-provider', () => {
  const read = (path: string) => JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8'));
  const { version } = read('../../node_modules/oidc-provider/package.json');
  assert.equal(read('../../package.json').dependencies['oidc-provider'], version);
});

function digestAt(path: string): string {
  const { owner, name } = memberAt(provider, path);
  const member = owner[name];
  assert.equal(typeof member, 'function', path);
  return createHash('sha256').update(String(member)).digest('base64url').slice(0, 16);
}
