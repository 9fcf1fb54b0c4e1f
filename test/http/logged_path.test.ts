/** Which part of a request's URL the log shows. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { loggedPath } from '../../src/http/logged_path.ts';

test('the log shows paths with ids, and hides queries and secrets in paths', () => {
  const id = '0199e3a4-52f1-7b7a-9c4e-0123456789ab';
  const app = 'https%3A%2F%2Fapp.example%2Fclient-metadata.json';
  for (const path of ['/', '/subscriptions', `/deliveries/${id}`, `/apps/${app}/members/${id}`]) {
    assert.equal(loggedPath(`${path}?code=1`), path);
  }
  const secret = 'whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=';
  assert.equal(loggedPath(`/subscriptions/${secret}/events`), '/subscriptions/[hidden]/events');
  assert.equal(loggedPath(`/${encodeURIComponent(secret)}`), '/[hidden]');
  assert.equal(loggedPath(`/apps/${id}${id}`), '/apps/[hidden]');
});

test('attack: a long path does not fill the log', () => {
  assert.equal(loggedPath('/short'.repeat(2_000)).length, 513);
  assert.equal(loggedPath(`/${'x'.repeat(16_000)}`), '/[hidden]');
});
