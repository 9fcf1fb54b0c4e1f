/** The log: no line is lost when the process ends itself, and the lines of one turn share a write. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const from = JSON.stringify(new URL('../../src/commands/log_destination.ts', import.meta.url).href);

/** Runs a script with a logger that writes to a target. Its lines are numbers. */
function run(target: string, script: string) {
  const source = `
    import { readFileSync } from 'node:fs';
    import { pino } from 'pino';
    import { openLogDestination } from ${from};
    const logger = pino({ base: null, timestamp: false }, openLogDestination(${target}));
    const log = (first, last) => { for (let n = first; n <= last; n++) logger.info(String(n)); };
    ${script}`;
  return spawnSync(process.execPath, ['--input-type=module', '-e', source], {
    encoding: 'utf8',
    cwd: new URL('../..', import.meta.url).pathname,
  });
}

function numbers(text: string): number[] {
  const lines = text.trimEnd().split('\n');
  return lines.map((line) => Number((JSON.parse(line) as { msg: string }).msg));
}

const upTo = (last: number) => Array.from({ length: last }, (_, index) => index + 1);

test('every log line is written when the process ends, however it ends from within', () => {
  for (const [ending, code] of [
    ['', 0],
    ['process.exit(3);', 3],
    ['setImmediate(() => { log(301, 400); process.exit(3); }); log(201, 300);', 3],
    ['throw new Error("nobody catches this");', 1],
    [
      'process.once("SIGTERM", () => process.exit(4)); process.kill(process.pid, "SIGTERM"); setTimeout(() => {}, 10_000);',
      4,
    ],
  ] as const) {
    const { stdout, status, stderr } = run('1', `log(1, 200); ${ending}`);
    assert.equal(status, code, stderr);
    assert.deepEqual(numbers(stdout), upTo(ending.includes('400') ? 400 : 200), ending);
  }
});

test('a fatal error is written before anything else happens', () => {
  const { stdout } = run('1', `log(1, 2); logger.fatal('3'); process.kill(process.pid, 'SIGKILL');`);
  assert.deepEqual(numbers(stdout), upTo(3));
});

test('lines of one turn are written together in order', (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'nuncio-log-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const file = join(directory, 'log');
  const { stdout, stderr } = run(
    JSON.stringify(file),
    `
    const writes = () => Number(/syscw: (\\d+)/.exec(readFileSync('/proc/self/io', 'utf8'))[1]);
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    log(1, 1);
    await turn();
    const before = writes();
    log(2, 300);
    await turn();
    log(301, 1_000);
    await turn();
    console.log(writes() - before);
    process.kill(process.pid, 'SIGKILL');`,
  );
  assert.deepEqual(numbers(readFileSync(file, 'utf8')), upTo(1_000), stderr);
  // Threads that wake each other also write.
  assert.ok(Number(stdout) < 100, stdout + stderr);
});
