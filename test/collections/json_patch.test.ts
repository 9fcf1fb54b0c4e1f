/** JSON Patch agrees with another implementation within its limits, and refuses everything beyond them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { applyPatch, type Operation } from 'rfc6902';
import { applyJsonPatch } from '../../src/collections/json_patch.ts';
import { Problem } from '../../src/http/problem.ts';

type Members = Record<string, unknown>;

/** The errors of a rejected patch as `status message`; undefined if it is applied. */
function rejectionOf(document: Members, patch: unknown): string | undefined {
  try {
    applyJsonPatch(document, patch);
    return undefined;
  } catch (error) {
    assert.ok(error instanceof Problem, String(error));
    return `${error.status} ${error.errors?.map(({ message }) => message).join()}`;
  }
}

const names = fc.constantFrom('a', 'b', 'a/b', '~', '', '0', '1');
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constantFrom<unknown>(null, 0, 1, true, 'text', ''),
    fc.array(tie('value'), { maxLength: 3 }),
    fc.dictionary(names, tie('value'), { maxKeys: 3, noNullPrototype: true }),
  ),
}));
const documents = fc.dictionary(names, value, { maxKeys: 4, noNullPrototype: true });
const pointers = fc
  .array(fc.oneof(names, fc.constantFrom('-', '2', '01')), { minLength: 1, maxLength: 3 })
  .map((tokens) => tokens.map((token) => `/${token.replaceAll('~', '~0').replaceAll('/', '~1')}`).join(''));
const operations = fc.oneof(
  fc.record({ op: fc.constantFrom('add', 'replace', 'test'), path: pointers, value }),
  fc.record({ op: fc.constant('remove'), path: pointers }),
  fc.record({ op: fc.constantFrom('move', 'copy'), path: pointers, from: pointers }),
);

test('JSON Patch agrees with another implementation when it applies', () => {
  let applied = 0;
  fc.assert(
    fc.property(documents, operations, (document, operation) => {
      const ours = structuredClone(document);
      const theirs = structuredClone(document);
      // The other implementation also accepts names that are not array indexes, and locations inside strings.
      if (rejectionOf(ours, [operation]) !== undefined) return;
      applied += 1;
      assert.equal(applyPatch(theirs, [operation as Operation])[0], null);
      assert.deepEqual(ours, theirs);
    }),
    { numRuns: 20_000 },
  );
  assert.ok(applied > 500, `${applied} were applied`);
});

test('JSON Patch is refused when it names no location of RFC 6901', () => {
  const document = { list: [1], text: 'text', box: {} };
  for (const path of [
    '/list/01',
    '/list/-1',
    '/list/2',
    '/list/a',
    '/text/0',
    '/none/a',
    'list',
    '/~2',
    '/__proto__',
  ]) {
    const rejection = rejectionOf(structuredClone(document), [{ op: 'add', path, value: 1 }]);
    assert.match(rejection ?? '', /^422/, path);
  }
  for (const op of ['remove', 'replace', 'test']) {
    for (const path of ['/list/-', '/list/1', '/list/length', '/box/toString', '/text/length']) {
      assert.ok(rejectionOf(structuredClone(document), [{ op, path, value: 1 }]), `${op} ${path}`);
    }
  }
});

/** Returns an array of numbers. */
const numbers = (length: number) => Array.from({ length }, (_, index) => index);

test('JSON Patch copies a small member 1,000 times beside a large one', () => {
  const document = { large: 'x'.repeat(60_000), small: 's' };
  const patch = Array(1_000).fill({ op: 'copy', from: '/small', path: '/title' });
  assert.equal(rejectionOf(document, patch), undefined);
});

test('JSON Patch is refused when its copies grow the document past the limit', () => {
  const large = Array(1_000).fill({ op: 'copy', from: '/large', path: '/title' });
  assert.match(rejectionOf({ large: 'x'.repeat(60_000) }, large) ?? '', /^422 copies too much/);
  const doubling = Array(60).fill({ op: 'copy', from: '/list', path: '/list/-' });
  assert.match(
    rejectionOf({ list: ['x'.repeat(32)] }, doubling) ?? '',
    /^422 (?:copies too much|does too much|nests more)/,
  );
  const sideways = numbers(40).map((index) => ({ op: 'copy', from: '', path: `/copy${index}` }));
  assert.match(
    rejectionOf({ list: ['x'.repeat(32)] }, sideways) ?? '',
    /^422 (?:copies too much|does too much|nests more)/,
  );
});

test('JSON Patch copies what it names when a member is called constructor', () => {
  const document = { box: { constructor: 1, large: 'x'.repeat(1_000) } };
  assert.equal(rejectionOf(document, [{ op: 'copy', from: '/box/constructor', path: '/copy' }]), undefined);
  assert.deepEqual((document as Members).copy, 1);
});

test('JSON Patch is refused when copies, moves or values nest deeper than a body may', () => {
  const copies = numbers(20).map((index) => ({
    op: 'copy',
    from: '/box',
    path: `/box${'/a'.repeat(2 ** index)}`,
  }));
  assert.match(rejectionOf({ box: {} }, copies) ?? '', /^422 nests more than 64 levels deep/);
  const nested = JSON.parse(`${'{"a":'.repeat(40)}1${'}'.repeat(40)}`) as Members;
  const patch = [
    { op: 'add', path: '/one', value: nested },
    { op: 'add', path: `/two`, value: nested },
    { op: 'move', from: '/two', path: `/one${'/a'.repeat(39)}/b` },
  ];
  assert.match(rejectionOf({}, patch) ?? '', /^422 nests more than 64 levels deep/);
});

test('JSON Patch is refused when its operations visit too many values', () => {
  const box = { list: numbers(300_000) };
  for (const operation of [
    { op: 'remove', path: '/list/0' },
    { op: 'add', path: '/list/0', value: 1 },
    { op: 'move', from: '/list', path: '/list' },
    { op: 'copy', from: '/list/0', path: '/list/0' },
  ]) {
    const patch = Array(1_000).fill(operation);
    assert.match(rejectionOf(structuredClone(box), patch) ?? '', /^422 does too much/, operation.op);
  }
  const objects = Array(40_000).fill({});
  const adds = ['/a', '/b', '/c', '/d'].map((path) => ({ op: 'add', path, value: objects }));
  assert.equal(rejectionOf({}, adds.slice(1)), undefined);
  assert.match(rejectionOf({}, adds) ?? '', /^422 does too much/);
  const tests = Array(1_000).fill({ op: 'test', path: '/list', value: box.list });
  assert.match(rejectionOf(structuredClone(box), tests) ?? '', /^422 does too much/);
});

test('attack: copies may make a fraction of the values that a patch may visit', () => {
  const list = Array(6_000).fill({});
  const copies = (count: number) =>
    numbers(count).map((index) => ({ op: 'copy', from: '/list', path: `/copy${index}` }));
  assert.equal(rejectionOf({ list }, copies(2)), undefined);
  assert.match(rejectionOf({ list }, copies(3)) ?? '', /^422 does too much/);
  const doubling = [
    { op: 'add', path: '/list', value: Array(140).fill({}) },
    ...Array(10).fill({ op: 'copy', from: '/list', path: '/list/-' }),
  ];
  assert.match(rejectionOf({}, doubling) ?? '', /^422 does too much/);
});

test('JSON Patch compares long arrays when a test names one', () => {
  const list = numbers(100_000);
  assert.equal(rejectionOf({ list }, [{ op: 'test', path: '/list', value: numbers(100_000) }]), undefined);
  const reversed = numbers(100_000).reverse();
  assert.match(rejectionOf({ list }, [{ op: 'test', path: '/list', value: reversed }]) ?? '', /^409/);
});
