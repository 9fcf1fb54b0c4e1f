/** docs/operations.md names every field of the log, and none that no line has. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { test } from 'node:test';

/** A call of a logger with fields. Fields that a call gets by a name are declared as `fields`, `line`, or by `fieldsOf`. */
const call = /\b(?:log(?:ger)?(?:\.(?:debug|info|warn|error)|\[[^\]]+\])|onWarning|onError)\(\s*(?=\{)/g;
const declaration =
  /\b(?:const (?:fields|line) = |fields: |function fieldsOf\([^)]*\): object \{\s*return )(?=\{)/g;
const loggers = /\blogger\b|\.log\b|onWarning|#post\b/;

/** The members of the object literal at the beginning of the text. */
function membersOf(text: string): string[] {
  let depth = 0;
  let member = '';
  const members: string[] = [];
  for (const character of text) {
    if (/[)\]}]/.test(character)) depth -= 1;
    if (depth === 0 || (depth === 1 && character === ',')) members.push(member);
    if (depth === 0 && character === '}') break;
    member = depth === 1 && character !== ',' ? member + character : depth > 1 ? member : '';
    if (/[([{]/.test(character)) depth += 1;
  }
  return members.map((each) => /^\s*([a-z]\w*)/.exec(each)?.[1] ?? '').filter((name) => name !== '');
}

async function fieldsOfLog(): Promise<Set<string>> {
  const found = new Set<string>();
  for await (const file of glob('src/**/*.ts', {
    exclude: ['src/{console,protect,outbox,verify,listen}/**'],
  })) {
    const text = readFileSync(file, 'utf8');
    if (!loggers.test(text)) continue;
    for (const pattern of [call, declaration])
      for (const { index, 0: start } of text.matchAll(pattern))
        for (const name of membersOf(text.slice(index + start.length))) found.add(name);
  }
  return found;
}

function documentedFields(): Set<string> {
  const page = readFileSync('docs/operations.md', 'utf8');
  const section = page.slice(page.indexOf('\n## Logs\n')).split('\n## ')[1] ?? '';
  const names = [...section.matchAll(/^\| (`[^|]+`) \|/gm)].flatMap(
    ([, cell = '']) => cell.match(/\w+/g) ?? [],
  );
  return new Set(names);
}

test('every field of a log line is documented, and no other', async () => {
  const fields = await fieldsOfLog();
  assert.ok(fields.size > 30, [...fields].join(' '));
  // pino adds these to each line, and Fastify the id to those about a request.
  for (const name of ['level', 'time', 'msg', 'request_id']) fields.add(name);
  assert.deepEqual([...documentedFields()].toSorted(), [...fields].toSorted());
});
