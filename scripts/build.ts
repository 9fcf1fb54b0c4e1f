/**
 * `npm run build`: makes `dist`, which npm publishes. Node runs no TypeScript below `node_modules`, so that there it
 * has to be JavaScript, the example platform included.
 */

import { execFileSync } from 'node:child_process';
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import { join } from 'node:path';
import { buildConsole } from './build_console.ts';

const root = join(import.meta.dirname, '..');
const source = join(root, 'src');
const target = join(root, 'dist');

rmSync(target, { recursive: true, force: true });
const tsc = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
execFileSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' });
// What is read beside the code: style sheets and the like. The console is built by itself.
const consoleSource = join(source, 'console');
cpSync(source, target, {
  recursive: true,
  filter: (path) => !path.endsWith('.ts') && path !== consoleSource,
});

const platform = readFileSync(join(root, 'nuncio.config.ts'), 'utf8');
const script = stripTypeScriptTypes(platform).replace("'./src/index.ts'", "'./index.js'");
writeFileSync(join(target, 'nuncio.config.js'), script);

if (!(await buildConsole())) throw new Error('the console cannot be built: vite is not installed');
