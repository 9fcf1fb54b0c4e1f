/**
 * `npm run bench [program…]`: runs the programs, each for some minutes, and writes one report with tables and pictures to
 * bench/results, and the figures of docs/sizing.md. With names of programs, it runs these and keeps the other results of the last
 * run. `--quick` takes a third of the time, with shorter rounds. `--pages` writes the pages from the last run.
 */

import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type Run, replaceParts, reportFiles, sizingParts } from './report/pages.ts';
import type { BenchRecord } from './support/record.ts';

interface Program {
  args: string[];
  /** With `--quick`. */
  quick: string[];
  records: string[];
}

const deliveries = 'bench/deliveries.ts';
const programs: Record<string, Program> = {
  deliveries: {
    args: [deliveries, 'throughput', '60000'],
    quick: [deliveries, 'throughput', '20000'],
    records: ['deliveries'],
  },
  single: {
    args: [deliveries, 'single', '8', '32'],
    quick: [deliveries, 'single', '3', '32'],
    records: ['single'],
  },
  latency: {
    args: [deliveries, 'latency', '10'],
    quick: [deliveries, 'latency', '4'],
    records: ['latency'],
  },
  backlog: {
    args: [deliveries, 'backlog', '200000'],
    quick: [deliveries, 'backlog', '150000'],
    records: ['idle', 'backlog'],
  },
  disk: {
    args: [deliveries, 'disk', '20000', '4'],
    quick: [deliveries, 'disk', '5000', '4'],
    records: ['disk'],
  },
  api: {
    args: ['bench/api.ts', '--seconds', '3'],
    quick: ['bench/api.ts', '--seconds', '1'],
    records: ['api'],
  },
  tokens: {
    args: ['bench/token.ts', '--rounds', '5'],
    quick: ['bench/token.ts', '--rounds', '3'],
    records: ['tokens'],
  },
  pull: {
    args: ['bench/pull.ts', '100000', '1000'],
    quick: ['bench/pull.ts', '30000', '300'],
    records: ['pull'],
  },
};

const root = fileURLToPath(new URL('..', import.meta.url));
const results = join(root, 'bench/results');
const sizingPage = join(root, 'docs/sizing.md');
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { pages: { type: 'boolean', default: false }, quick: { type: 'boolean', default: false } },
});
const unknown = positionals.find((name) => programs[name] === undefined);
if (unknown !== undefined) throw new Error(`${unknown}: there are ${Object.keys(programs).join(', ')}`);

const last = lastRun();
const wanted = positionals.length > 0 ? positionals : Object.keys(programs);
const run: Run = values.pages ? required(last) : await runAll(wanted);
mkdirSync(results, { recursive: true });
for (const [name, text] of reportFiles(run)) writeFileSync(join(results, name), text);
writeFileSync(sizingPage, replaceParts(readFileSync(sizingPage, 'utf8'), sizingParts(run)));
console.log('Wrote bench/results/report.md and docs/sizing.md');

function lastRun(): Run | undefined {
  const file = join(results, 'results.json');
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined;
}

function required(found: Run | undefined): Run {
  if (found === undefined) throw new Error('There are no results yet: run npm run bench');
  return found;
}

async function runAll(names: readonly string[]): Promise<Run> {
  const folder = mkdtempSync(join(tmpdir(), 'nuncio-report-'));
  try {
    const replaced = new Set(names.flatMap((name) => programs[name]?.records ?? []));
    const records = (last?.records ?? []).filter(({ of }) => !replaced.has(of));
    for (const name of names) records.push(...runProgram(name, join(folder, `${name}.jsonl`)));
    return { ...describeRun(), records };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function runProgram(name: string, file: string): BenchRecord[] {
  const program = programs[name] as Program;
  const args = values.quick ? program.quick : program.args;
  console.log(`${name}: ${args.join(' ')}`);
  const startedAt = performance.now();
  const env = { ...process.env, BENCH_RECORDS: file };
  const { status } = spawnSync(process.execPath, args, { cwd: root, env, stdio: 'inherit' });
  if (status !== 0) throw new Error(`${name} failed`);
  console.log(`${name}: ${Math.round((performance.now() - startedAt) / 1_000)} s\n`);
  return readFileSync(file, 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
}

function describeRun(): Omit<Run, 'records'> {
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], {
    cwd: root,
    encoding: 'utf8',
  }).trim();
  const model = cpus()[0]?.model.trim() || 'unknown processor';
  const gibibytes = Math.round(totalmem() / 1_073_741_824);
  return {
    date: new Date().toISOString().slice(0, 10),
    commit,
    machine:
      `${availableParallelism()} cores (${model}) and ${gibibytes} GiB, shared by Nuncio, PostgreSQL, the load generator and ` +
      `the subscriber; ${process.platform} ${process.arch}, Node ${process.versions.node}.` +
      (values.quick ? ' A quick run, with short rounds.' : ''),
  };
}
