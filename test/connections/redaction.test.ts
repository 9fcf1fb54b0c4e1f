/** What of a request may appear in a trace. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { redact, unknownClientId, withoutQuery } from '../../src/connections/redaction.ts';

test('redact hides secret parameters, tokens, long random text and queries', () => {
  const secret = 'c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA';
  assert.equal(redact('wrong pass1234', { password: 'pass1234' }), 'wrong [hidden]');
  assert.equal(redact(`got ${secret}`), 'got [hidden]');
  assert.equal(redact('got whsec_AAEC/wQFBg+ICQoL/A0ODxAREhMU='), 'got [hidden]');
  assert.equal(redact('got eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln'), 'got [hidden]');
  assert.equal(redact('at https://u:p@a.example/cb?code=1#t'), 'at https://a.example/cb?…');
  assert.equal(
    redact('not https://a.example/. But (https://b.example/x?y=1).'),
    'not https://a.example/. But (https://b.example/x?…).',
  );
  const id = '0199e3a4-52f1-7b7a-9c4e-0123456789ab';
  assert.equal(redact(`app ${id}`), `app ${id}`);
});

test('attack: secrets that are parts of what is shown in their place do not make the text long', () => {
  // Each replaced one of these would make more of the others.
  const params = Object.fromEntries(
    ['access_token', 'assertion', 'code', 'nonce', 'state', 'token', 'username', 'user_code'].flatMap(
      (name, index) => [[name, index % 2 === 0 ? '[hid' : 'den]']],
    ),
  );
  assert.equal(redact('a [hid b den] c [hidden]', params), 'a [hidden] b [hidden] c [hidden]');
  assert.equal(redact('den][hid'.repeat(5_000), params), '[hidden]');
});

test('redact hides secrets that are long, cut, repeated or joined', () => {
  const secret = Array.from({ length: 40 }, (_none, index) => `pass phrase ${index} `).join('');
  assert.equal(redact(`a ${secret}b`, { password: secret }), 'a [hidden]b');
  assert.equal(
    redact('a 1234 5678 12345678 b', { code: '1234', state: '5678' }),
    'a [hidden] [hidden] [hidden] b',
  );
  for (let before = 1_100; before < 1_210; before += 1) {
    const text = redact(`${'x'.repeat(31).concat(' ').repeat(40).slice(0, before)}hunter2 hunter2`, {
      password: 'hunter2 hunter2',
      code: 'x'.repeat(31).concat(' '),
    });
    assert.doesNotMatch(text, /hun/);
  }
});

test('redact returns text that PostgreSQL stores, of limited length', () => {
  assert.equal(redact('a\u0000b\nc\ud800'), 'a b c\ufffd');
  assert.equal(redact('x y '.repeat(1_000)).length, 600);
  // A cut can divide a character of two code units.
  for (const text of [redact(`${'a '.repeat(299)}b😀`), unknownClientId(`${'a '.repeat(99)}b😀`)]) {
    assert.ok(text?.endsWith('\ufffd'));
  }
  assert.ok(withoutQuery(`${'a '.repeat(99)}b😀`).isWellFormed());
});

test('an unknown app is named only if its id is no secret and no address', () => {
  assert.equal(unknownClientId('my-app'), 'my-app');
  assert.equal(unknownClientId('https://app.example/client.json?key=1'), 'https://app.example/client.json?…');
  assert.equal(unknownClientId('mail@user.example'), null);
  assert.equal(unknownClientId('Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4'), null);
  assert.equal(unknownClientId('whsec_AAEC/wQFBg+ICQoL/A0ODxAREhMU='), null);
  assert.equal(unknownClientId('correct_horse_battery_staple_again'), null);
  assert.equal(unknownClientId(['a']), null);
});

test('attack: an id that no app can have is not searched for secrets', () => {
  assert.equal(unknownClientId('my app'), 'my app');
  assert.equal(unknownClientId('my app '.repeat(300)), null);
});

test('withoutQuery keeps addresses of native apps readable', () => {
  assert.equal(withoutQuery('com.example.app:/callback'), 'com.example.app:/callback');
  assert.equal(withoutQuery('http://localhost:3000/cb#x'), 'http://localhost:3000/cb?…');
  assert.equal(withoutQuery('no url?x=1'), 'no url');
});

test('withoutQuery keeps what makes a redirect URI differ from the registered one, and no password', () => {
  for (const text of ['https://App.example', 'https://app.example:443/cb', 'https://app.example/a/../cb/']) {
    assert.equal(withoutQuery(text), text);
  }
  for (const text of ['https://u:p@a.example/cb', 'https:/u:p@a.example/cb', 'https:\\\\u:p@a.example\\cb']) {
    assert.equal(withoutQuery(text), 'https://a.example/cb', text);
  }
});

test('redact keeps the names of parameters, which are longer than secrets', () => {
  for (const text of [
    'to pushed_authorization_request_endpoint first',
    'tls_client_certificate_bound_access_tokens must be a boolean',
  ]) {
    assert.equal(redact(text), text);
  }
  assert.equal(redact('got aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa_bb'), 'got [hidden]');
});

test('what is shown has no characters that hide text, turn it around or look like Latin ones', () => {
  assert.equal(redact('a\u202eb\u200bc\u2028d\ufeffe'), 'a b c d e');
  // The first letter of the host is Cyrillic.
  assert.equal(withoutQuery('https://\u0430pp.example/cb'), 'https://xn--pp-6kc.example/cb');
  assert.equal(withoutQuery('https://app.example/\u202ebc'), 'https://app.example/%E2%80%AEbc');
  assert.equal(withoutQuery('com.example.app:/\u0430'), 'com.example.app:/%D0%B0');
});
