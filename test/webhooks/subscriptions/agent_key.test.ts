/** Ids of agents' subscriptions and their canonical JSON, compared with an independent implementation. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import fc from 'fast-check';
import { agentKey, canonicalJson } from '../../../src/webhooks/subscriptions/agent_key.ts';

const hooks = 'https://hooks.example.com/cb';

function keyOf(principal: string, url: string, name: string, given: unknown): string {
  return agentKey({ principal, url, name, arguments: canonicalJson(given) });
}

test('agents 65: the id is a digest of principal, URL, kind and arguments', () => {
  const given = JSON.parse('{"total":{"$gte":100},"currency":"USD"}');
  const url = 'https://receiver.example.com/mcp-events/abc123';
  assert.equal(keyOf('user_8f2c', url, 'order.created', given), 'sub_1fa69bec3707ee16223ae5400f92f935');
});

test('agents 66: grants have different ids, the order of members does not matter, that of lists does', () => {
  const keys = [
    keyOf('grant_01', hooks, 'article.published', {}),
    keyOf('grant_02', hooks, 'article.published', {}),
    keyOf('grant_01', hooks, 'article.published', { author: ['u2', 'u1'], state: 'published' }),
    keyOf('grant_01', hooks, 'article.published', { state: 'published', author: ['u2', 'u1'] }),
    keyOf('grant_01', hooks, 'article.published', { state: 'published', author: ['u1', 'u2'] }),
  ];
  assert.deepEqual(keys, [
    'sub_4247c99d43396dfcf823109f47091a0e',
    'sub_d0f6d2aae14f6f1244d2df66bdee5505',
    'sub_7a9c8245191cdda2e12a5bc5ce50a703',
    'sub_7a9c8245191cdda2e12a5bc5ce50a703',
    'sub_0ac38d8e3a23e94b9b88c4571831a7d4',
  ]);
});

test('agents 67: numbers are written as ECMAScript does, and names sorted by UTF-16 code units', () => {
  const numbers = JSON.parse('{"amount":{"$gte":1e21,"$lt":5e-324},"n":-0}');
  assert.equal(keyOf('grant_01', hooks, 'invoice.paid', numbers), 'sub_4a98ea30010b19628276aa48e5c20954');
  const names = JSON.parse('{"é":1,"😀":2,"！":3,"e":4}');
  assert.equal(keyOf('grant_01', hooks, 'invoice.paid', names), 'sub_3b14eb1792b3e70f5c33b0edc4528252');
});

/** RFC 8785 in another way: tokens of a stack, names compared by their UTF-16 bytes, strings escaped one by one. */
function independent(value: unknown): string {
  const utf16 = (text: string) => Buffer.from(text, 'utf16le').swap16();
  const quote = (text: string) => {
    const escapes: Record<string, string> = {
      '\b': 'b',
      '\t': 't',
      '\n': 'n',
      '\f': 'f',
      '\r': 'r',
      '"': '"',
      '\\': '\\',
    };
    const units = text.split('').map((unit) => {
      if (escapes[unit] !== undefined) return `\\${escapes[unit]}`;
      const code = unit.charCodeAt(0);
      return code < 0x20 ? `\\u${code.toString(16).padStart(4, '0')}` : unit;
    });
    return `"${units.join('')}"`;
  };
  const waiting: { token?: string; value?: unknown }[] = [{ value }];
  let text = '';
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    const { token, value: each } = next;
    if (token !== undefined) text += token;
    else if (typeof each === 'string') text += quote(each);
    else if (typeof each === 'number') text += String(each === 0 ? 0 : each);
    else if (typeof each !== 'object' || each === null) text += String(each);
    else {
      const isList = Array.isArray(each);
      const members = isList
        ? each.map((value) => [{ value }])
        : Object.entries(each)
            .sort(([one], [other]) => Buffer.compare(utf16(one), utf16(other)))
            .map(([name, value]) => [{ token: `${quote(name)}:` }, { value }]);
      const tokens = members.flatMap((member, index) => (index === 0 ? member : [{ token: ',' }, ...member]));
      waiting.push(...[{ token: isList ? '[' : '{' }, ...tokens, { token: isList ? ']' : '}' }].reverse());
    }
  }
  return text;
}

function independentKey(principal: string, url: string | null, name: string, given: unknown): string {
  const text = independent({ url, principal, name, arguments: given });
  return `sub_${createHash('sha256').update(text, 'utf8').digest().subarray(0, 16).toString('hex')}`;
}

/** Objects as a request has them. Text with lone surrogates is refused before. */
const json = fc
  .jsonValue({ maxDepth: 5, stringUnit: 'binary' })
  .map((value) => JSON.parse(JSON.stringify(value)));

test('agents 65: canonical JSON and ids agree with an independent implementation', () => {
  const member = fc.string({ unit: 'binary' });
  fc.assert(
    fc.property(
      fc.dictionary(member, json),
      member,
      member,
      fc.option(member),
      (given, principal, name, url) => {
        const canonical = canonicalJson(given);
        assert.equal(canonical, independent(given));
        assert.deepEqual(JSON.parse(canonical), JSON.parse(JSON.stringify(given)));
        assert.equal(
          agentKey({ principal, url, name, arguments: canonical }),
          independentKey(principal, url, name, given),
        );
      },
    ),
    { numRuns: 300 },
  );
});

test('canonical JSON is the same however the members were ordered, and keeps names of prototypes', () => {
  fc.assert(
    fc.property(fc.dictionary(fc.string(), json), (given) => {
      const reversed = JSON.parse(
        `{${Object.entries(given)
          .reverse()
          .map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`)
          .join(',')}}`,
      );
      assert.equal(canonicalJson(reversed), canonicalJson(given));
    }),
  );
  const hostile = JSON.parse('{"__proto__":{"a":1},"constructor":2}');
  assert.equal(canonicalJson(hostile), '{"__proto__":{"a":1},"constructor":2}');
});

test('values with more than 16 levels are refused', () => {
  const nested = (levels: number): unknown => (levels === 0 ? 1 : { a: nested(levels - 1) });
  assert.equal(canonicalJson(nested(16)).length, 16 * 6 + 1);
  assert.throws(() => canonicalJson(nested(17)), RangeError);
});
