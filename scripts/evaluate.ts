/** `npm run evaluate -- <scenario> <folder>`: runs the check of a scenario of docs/evaluation with the solution in a folder. */

import { spawnSync } from 'node:child_process';
import { existsSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';

const [scenario = '', folder = ''] = process.argv.slice(2);
const isScenario = /^[a-z-]+$/.test(scenario) && existsSync(join('docs/evaluation', scenario, 'check.ts'));
if (!isScenario || !existsSync(folder) || !statSync(folder).isDirectory()) {
  console.error(
    'Usage: npm run evaluate -- <scenario> <folder>. The scenarios are in docs/evaluation/README.md.',
  );
  process.exit(2);
}
const env = { ...process.env, EVALUATION_SCENARIO: scenario, EVALUATION_FOLDER: resolve(folder) };
const { status } = spawnSync(
  process.execPath,
  ['test/support/runner/run.ts', 'test/examples/evaluation.test.ts'],
  { env, stdio: 'inherit' },
);
process.exit(status ?? 1);
