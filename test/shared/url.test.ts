import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isCostlyUrl, parseUrl } from '../../src/shared/url.ts';

test('a long URL is parsed unless it has characters of other scripts', () => {
  const long = `https://app.example/${'a'.repeat(60_000)}`;
  assert.equal(parseUrl(long)?.href, long);
  assert.equal(parseUrl(`${long}é`), null);
  assert.equal(parseUrl('https://bücher.example/é')?.host, 'xn--bcher-kva.example');
  assert.equal(parseUrl('no URL'), null);
});

test('the limit of 2,048 bytes counts those of each character', () => {
  assert.equal(isCostlyUrl('文'.repeat(682)), false);
  assert.equal(isCostlyUrl('文'.repeat(683)), true);
  assert.equal(isCostlyUrl('é'.repeat(1_024)), false);
  assert.equal(isCostlyUrl('é'.repeat(1_025)), true);
});
