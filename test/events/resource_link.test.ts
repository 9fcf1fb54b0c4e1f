/** Links from events to their resources: what a template may say, and what a body can make of it. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { resourceLink, templateError } from '../../src/events/resource_link.ts';

const base = 'https://api.example';

const linkOf = (template: string, body: unknown) => resourceLink(template, JSON.stringify(body), base);

test('a template takes its values from the body, a path belongs to the server', () => {
  const body = { article: { id: 'a1' }, comment: { id: 7 }, 'x/y~z': 'odd' };
  assert.equal(
    linkOf('/articles/{/article/id}/comments/{/comment/id}', body),
    `${base}/articles/a1/comments/7`,
  );
  assert.equal(linkOf('https://shop.example/i/{/x~1y~0z}', body), 'https://shop.example/i/odd');
  assert.equal(linkOf('/articles', body), `${base}/articles`);
});

test('no value of a body leads to another path or host', () => {
  const hostile = [
    '../admin',
    'a/../../b',
    'a?b=c',
    'a#b',
    '@evil.example',
    '\\evil',
    'é',
    ' ',
    '%2e%2e',
    '//evil.example',
  ];
  for (const id of hostile) {
    const url = new URL(linkOf('/articles/{/id}/end', { id }) as string);
    assert.equal(url.origin, base, id);
    assert.equal(url.search + url.hash, '', id);
    const [, first, value = '', last] = url.pathname.split('/');
    assert.deepEqual([first, decodeURIComponent(value), last], ['articles', id, 'end']);
  }
});

test('a body without a usable value has no link', () => {
  const bodies = [
    {},
    null,
    'text',
    [],
    { id: null },
    { id: '' },
    { id: '.' },
    { id: '..' },
    { id: {} },
    { id: ['a'] },
    { id: true },
    { id: 1.5 },
    { id: 2 ** 53 },
    { id: '\ud800' },
    Object.create({ id: 'inherited' }),
  ];
  for (const body of bodies) assert.equal(linkOf('/articles/{/id}', body), null);
  assert.equal(linkOf('/x/{/constructor/name}', {}), null);
});

test('templates that no example fits, or whose host a body decides, are refused', () => {
  const example = { invoice: { id: 'inv_1' }, host: 'evil.example' };
  for (const good of ['/invoices/{/invoice/id}', 'https://shop.example/i/{/invoice/id}', '/invoices'])
    assert.equal(templateError(good, example), undefined, good);
  const refused = [
    '/invoices/{/invoice/number}',
    '/invoices/{/invoice}',
    'https://{/host}/x',
    'https://shop.example{/host}',
    '//{/host}/x',
    'http://shop.example/{/host}',
    'javascript:{/host}',
    'invoices/{/host}',
    '{/host}',
    '/x/{/host',
    '',
    7,
    `/${'x'.repeat(1_024)}`,
  ];
  for (const template of refused)
    assert.equal(typeof templateError(template, example), 'string', String(template));
});
