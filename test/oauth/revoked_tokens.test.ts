/** The memory of revoked tokens gives the answers of a map, and takes a part of its bytes. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { newSecret } from '../../src/crypto/digest.ts';
import { RevokedTokens } from '../../src/grants/revoked_tokens.ts';

const run = promisify(execFile);
const module = new URL('../../src/grants/revoked_tokens.ts', import.meta.url).href;
const minute = 60_000;

test('revoked tokens are found until their time, whatever is added and swept meanwhile', () => {
  const tokens = new RevokedTokens();
  const until = new Map<string, number>();
  const others = Array.from({ length: 1_000 }, newSecret);
  for (let now = minute; now < 30 * minute; now += minute) {
    for (let count = 0; count < 2_000; count += 1) {
      // Every tenth is added again, with another time.
      const id = count % 10 === 0 ? ([...until.keys()].at(-count - 1) ?? newSecret()) : newSecret();
      const kept = now + (1 + (count % 7)) * minute;
      tokens.add(id, kept, now);
      until.set(id, Math.max(until.get(id) ?? 0, kept));
    }
    while (!tokens.sweepPart(now));
    for (const [id, kept] of until) {
      if (kept >= now) assert.ok(tokens.has(id));
      // A time is kept to the second.
      else if (kept < now - 1_000) {
        assert.ok(!tokens.has(id));
        until.delete(id);
      }
    }
    assert.deepEqual(
      others.filter((id) => tokens.has(id)),
      [],
    );
  }
  while (!tokens.sweepPart(60 * minute));
  assert.deepEqual(
    [...until.keys()].filter((id) => tokens.has(id)),
    [],
  );
});

/** Prints the bytes that a process needs for each of very many ids. */
const program = `
  const { RevokedTokens } = await import(${JSON.stringify(module)});
  const used = () => (gc(), process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers);
  const before = used();
  const tokens = new RevokedTokens();
  for (let index = 0; index < 500_000; index += 1) tokens.add(index + ':' + 'x'.repeat(36), 60_000, 0);
  while (!tokens.sweepPart(0));
  process.stdout.write(String((used() - before) / (tokens.has('7:' + 'x'.repeat(36)) ? 500_000 : 0)));
`;

test('attack: revoked tokens in large numbers take at most 60 bytes each', async () => {
  const { stdout } = await run(process.execPath, ['--expose-gc', '--input-type=module', '--eval', program]);
  assert.ok(Number(stdout) < 60, `${stdout} bytes`);
});
