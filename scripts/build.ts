/**
 * `npm run build` writes `dist`, which is published to npm. Node.js does not run TypeScript below `node_modules`, so the
 * package contains JavaScript, including the example platform.
 */

import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, globSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { rolldown } from 'rolldown';
import { buildConsole } from './build_console.ts';

const root = join(import.meta.dirname, '..');
const source = join(root, 'src');
const target = join(root, 'dist');

rmSync(target, { recursive: true, force: true });
const tsc = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
// Comments go into the types only: threads keep the text of what they run, which is 2 MiB more with comments.
for (const options of [['--emitDeclarationOnly'], ['--declaration', 'false', '--removeComments']]) {
  const words = [tsc, '-p', join(root, 'tsconfig.build.json'), ...options];
  execFileSync(process.execPath, words, { stdio: 'inherit' });
}
// Copy the other files, such as style sheets, but not the READMEs. The console has its own build.
const consoleSource = join(source, 'console');
cpSync(source, target, {
  recursive: true,
  filter: (path) => !/\.(ts|md)$/.test(path) && path !== consoleSource,
});

await includeKysely();

const platform = readFileSync(join(root, 'nuncio.config.ts'), 'utf8');
const script = stripTypeScriptTypes(platform).replace("'./src/index.ts'", "'./index.js'");
writeFileSync(join(target, 'nuncio.config.js'), script);
// To copy as a beginning: it imports the package by its name.
writeFileSync(join(target, 'nuncio.config.ts'), platform.replace("'./src/index.ts'", "'nuncio'"));
// npm sets the mode of `bin` at installation, other package managers do not.
chmodSync(join(target, 'main.js'), 0o755);

if (!(await buildConsole())) throw new Error('cannot build the console: vite is not installed');

/**
 * Makes one file of what the server uses of Kysely, and lets the other files import that. Kysely's own 300 files take 6 MiB more
 * memory in the server's two threads.
 */
async function includeKysely(): Promise<void> {
  const file = join(target, 'kysely.js');
  writeFileSync(file, "export { Kysely, PostgresDialect, sql } from 'kysely';\n");
  const bundle = await rolldown({ input: file, platform: 'node' });
  const license = readFileSync(join(root, 'node_modules', 'kysely', 'LICENSE'), 'utf8');
  await bundle.write({ file, format: 'esm', comments: false, banner: `/*!\nkysely\n\n${license}*/` });
  await bundle.close();
  for (const path of globSync('**/*.js', { cwd: target }).map((name) => join(target, name))) {
    const code = readFileSync(path, 'utf8');
    const here = `./${relative(dirname(path), file)}`.replace('./../', '../');
    if (path !== file) writeFileSync(path, code.replaceAll("from 'kysely';", `from '${here}';`));
  }
}
