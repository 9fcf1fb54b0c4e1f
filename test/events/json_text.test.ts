/** Looking into JSON without parsing it. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseBatch, parseInTurns } from '../../src/events/batch.ts';
import { longNumbers, textAt } from '../../src/events/json_text.ts';
import { resourceLink } from '../../src/events/resource_link.ts';
import { Problem } from '../../src/http/problem.ts';
import { timesAsMuch } from '../support/processor_time.ts';

const bytes = 250_000;
const bodyOf = (items: readonly string[]) => `{"items":[${items.join(',')}],"id":"a1"}`;
const plain = bodyOf([`"${'x'.repeat(bytes)}"`]);

const value = {
  a: { b: [1, 'two', { c: null }], 'x/y': '"]}', '': true, 'é\n"\\': -1.5e-7 },
  list: [[], {}, [[['deep']]], '\\', '\\"', '[', 0],
  last: false,
};

/** All places of a value. */
function* placesOf(of: unknown, steps: readonly string[] = []): Iterable<[string[], unknown]> {
  yield [[...steps], of];
  if (typeof of !== 'object' || of === null) return;
  for (const [name, member] of Object.entries(of)) yield* placesOf(member, [...steps, name]);
}

for (const [name, space] of [
  ['without spaces', undefined],
  ['with spaces and line breaks', 2],
  ['with tabs', '\t'],
] as const) {
  test(`every value of JSON ${name} is found at its place`, () => {
    const text = `${space === undefined ? '' : ' \r\n'}${JSON.stringify(value, null, space)}`;
    for (const [steps, expected] of placesOf(value)) {
      const found = textAt(text, steps);
      assert.ok(found !== undefined, steps.join('/'));
      assert.deepEqual(JSON.parse(found), expected, steps.join('/'));
    }
  });
}

test('nothing is found where JSON has no value', () => {
  const text = JSON.stringify(value);
  const places = [
    'b',
    'a/c',
    'a/b/3',
    'a/b/-1',
    'a/b/01',
    'a/b/length',
    'a/b/1/0',
    'last/x',
    'list/0/0',
    'list/1/x',
  ];
  for (const place of places) assert.equal(textAt(text, place.split('/')), undefined, place);
});

test('names may be written with escapes, and of several members the last one counts', () => {
  assert.equal(textAt(String.raw`{"\u0061":1}`, ['a']), '1');
  assert.equal(textAt('{"a":1,"b":{"a":2},"a":3}', ['a']), '3');
});

test('long numbers are found outside texts only', () => {
  const text =
    '[1,-12345678901234567890,{"a":1e400,"b":"9999999999999999999"},"\\",1e999",0.12345678901234567,1E5]';
  assert.deepEqual([...longNumbers(text)], ['-12345678901234567890', '1e400', '0.12345678901234567', '1E5']);
});

test('the link of an event takes about as long to make, whatever its body has', async () => {
  let round = 0;
  // Parsing takes long if names are new.
  const names = () => {
    round += 1;
    return bodyOf(Array.from({ length: bytes / 16 }, (_, index) => `{"a${round}_${index}":1}`));
  };
  const bodies = Array.from({ length: 20 }, names);
  const link = (body: string) => resourceLink('/items/{/id}', body, 'https://api.example');
  assert.equal(link(names()), 'https://api.example/items/a1');
  const ratio = await timesAsMuch(
    () => link(bodies.pop() as string),
    () => link(plain),
  );
  assert.ok(ratio < 4, `${ratio} times as long`);
});

test('a body with a long number takes about as long to read as one without', async () => {
  const items = Array.from({ length: bytes / 2 }, () => '1');
  const [without, having] = [items, [...items, '0.1234567890123456']].map((each) =>
    Buffer.from(bodyOf(each)),
  );
  const ratio = await timesAsMuch(
    () => parseBatch(having as Buffer),
    () => parseBatch(without as Buffer),
  );
  assert.ok(ratio < 8, `${ratio} times as long`);
});

const filler = `"${'x'.repeat(300_000)}"`;

test('the events of a large batch are parsed in turns', async () => {
  const text = `[${Array.from({ length: 10 }, (_, index) => ` {"a":${index},"b":${filler}} `).join(',')}]\n`;
  const turns: number[] = [];
  const takeTurn = async (length: number) => void turns.push(length);
  assert.deepEqual(await parseInTurns(Buffer.from(text), takeTurn), JSON.parse(text));
  assert.equal(turns.length, 10);
});

test('a large batch is refused in turns if it is refused at once', async () => {
  const refused = [
    '[1 2]',
    '[1,2',
    '[1,]',
    '[,1]',
    '[1]]',
    '[1]x',
    '[{]',
    '[{"a":1]}',
    '["a]',
    '[1e999]',
    '[[12345678901234567890]]',
  ];
  for (const text of [...refused, '[]', '[ 1 ]', '{"a":[1]}', '"[1]"', '[[],[[]],{}]']) {
    const large = Buffer.from(
      text.replace(/^\[(?=.)/, (start) => `${start}${text === '[]' ? ' '.repeat(300_000) : `${filler},`}`),
    );
    const [atOnce, inTurns] = await Promise.allSettled([
      (async () => parseBatch(large))(),
      parseInTurns(large, async () => {}),
    ]);
    assert.deepEqual(inTurns, atOnce, text);
    assert.equal(atOnce.status, refused.includes(text) ? 'rejected' : 'fulfilled', text);
  }
});

test('attack: batches with very many items, or with very long events, are refused before they are parsed', async () => {
  const many = `[${'1,'.repeat(2_000_000)}1]`;
  const long = `{"a":"${'x'.repeat(1_048_576)}"}`;
  for (const [text, status, code] of [
    [many, 422, 'batch-too-large'],
    [`[{},${long}]`, 413, 'event-too-large'],
    [long, 413, 'event-too-large'],
    [`[${long}`, 400, 'not-json'],
    [` [${long}] x`, 400, 'not-json'],
  ] as const) {
    let parsed = 0;
    const { parse } = JSON;
    JSON.parse = (...given) => {
      parsed = Math.max(parsed, given[0].length);
      return parse(...given);
    };
    const error = await parseInTurns(Buffer.from(text), async () => {}).catch((reason) => reason);
    JSON.parse = parse;
    assert.ok(error instanceof Problem);
    assert.deepEqual(
      [error.status, error.code ?? error.errors?.[0]?.code],
      [status, code],
      text.slice(0, 20),
    );
    assert.ok(parsed < 1_000, `${parsed} characters were parsed`);
  }
});
