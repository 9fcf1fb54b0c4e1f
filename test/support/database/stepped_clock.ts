/**
 * A wall clock of PostgreSQL or of a server that a test can set, through a library preloaded before the C library. The
 * monotonic clock stays. Requires Linux and a C compiler.
 */

import { spawnSync } from 'node:child_process';
import { chmodSync, closeSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

export interface SteppedClock {
  /** Environment variables of a program that shall have this clock. */
  environment: Readonly<Record<'LD_PRELOAD' | 'STEPPED_CLOCK_FILE', string>>;
  /** Sets the clock ahead by a number of seconds. */
  set: (secondsAhead: number) => void;
  /** Calls a function that starts a PostgreSQL with this clock. */
  under: <T>(start: () => Promise<T>) => Promise<T>;
}

/** @returns undefined if this machine does not support it */
export function createSteppedClock(t: TestContext): SteppedClock | undefined {
  if (process.platform !== 'linux') return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'nuncio-clock-'));
  const library = join(directory, 'stepped_clock.so');
  const source = join(import.meta.dirname, 'stepped_clock.c');
  const { status } = spawnSync('cc', ['-shared', '-fPIC', '-O2', '-o', library, source], { stdio: 'ignore' });
  const offset = join(directory, 'seconds_ahead');
  const file = openSync(offset, 'w');
  t.after(() => {
    closeSync(file);
    rmSync(directory, { recursive: true, force: true });
  });
  if (status !== 0) return undefined;
  // PostgreSQL may run as another user.
  chmodSync(directory, 0o755);
  chmodSync(offset, 0o644);
  // An embedded PostgreSQL is started by `env -i`, which drops the variables of this process.
  const program = join(directory, 'env');
  const environment = { LD_PRELOAD: library, STEPPED_CLOCK_FILE: offset };
  const variables = Object.entries(environment)
    .map(([name, value]) => `${name}='${value}'`)
    .join(' ');
  writeFileSync(program, `#!/bin/sh\nshift\nexec /usr/bin/env -i ${variables} "$@"\n`, { mode: 0o755 });
  const set = (secondsAhead: number) => {
    const bytes = Buffer.alloc(8);
    if (process.arch === 's390x') bytes.writeBigInt64BE(BigInt(secondsAhead));
    else bytes.writeBigInt64LE(BigInt(secondsAhead));
    // Writes in place. Truncating a mapped file, even briefly, would crash its readers.
    writeSync(file, bytes, 0, bytes.length, 0);
  };
  set(0);
  return {
    environment,
    set,
    async under(start) {
      const { env } = process;
      const { PATH } = env;
      env.PATH = `${directory}:${PATH}`;
      try {
        return await start();
      } finally {
        env.PATH = PATH;
      }
    },
  };
}
