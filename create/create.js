#!/usr/bin/env node
/**
 * `npm create nuncio <folder>`: copies the template into an empty folder. It asks nothing, installs nothing and writes nothing outside the
 * folder.
 */

import { existsSync } from 'node:fs';
import { cp, mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { basename, join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';

const usage = `usage: npm create nuncio <folder>

Makes a project that runs Nuncio in a new or empty folder.

  --nuncio <version>  version, URL or path of the package nuncio (default: ^{version})
  -h, --help          shows this
`;

/** Files that a new folder may have, as hosts of repositories create them. */
const harmless = new Set(['.git', '.gitattributes', 'LICENSE', '.DS_Store']);

const { version } = JSON.parse(await readFile(new URL('./package.json', import.meta.url), 'utf8'));
const help = usage.replace('{version}', version);

try {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { nuncio: { type: 'string' }, help: { type: 'boolean', short: 'h' } },
  });
  if (values.help) process.stdout.write(help);
  else if (positionals.length !== 1) refuse(`name one folder\n\n${help}`, 2);
  else await create(resolve(positionals[0]), values.nuncio ?? `^${version}`);
} catch (error) {
  refuse(error.message, error.code?.startsWith('ERR_PARSE_ARGS') ? 2 : 1);
}

/** @param {string} folder @param {string} source version, URL or path of the package nuncio */
async function create(folder, source) {
  const name = packageName(basename(folder));
  await mkdir(folder, { recursive: true });
  const others = (await readdir(folder)).filter((each) => !harmless.has(each));
  if (others.length > 0) throw new Error(`${folder} is not empty: it has ${others.slice(0, 3).join(', ')}`);
  await cp(new URL('./template/', import.meta.url), folder, { recursive: true });
  // npm leaves a .gitignore out of packages.
  await rename(join(folder, 'gitignore'), join(folder, '.gitignore'));
  const file = join(folder, 'package.json');
  const project = JSON.parse(await readFile(file, 'utf8'));
  project.name = name;
  // A path is relative to the current directory, not to the project.
  project.dependencies.nuncio = existsSync(source) ? resolve(source) : source;
  await writeFile(file, `${JSON.stringify(project, null, 2)}\n`);
  const path = relative(process.cwd(), folder) || '.';
  process.stdout.write(`Created ${folder}. Next:\n\n  cd ${path}\n  npm install\n  npm run dev\n`);
}

/** A valid name for package.json, made from the folder's. */
function packageName(text) {
  const name = text
    .toLowerCase()
    .replace(/[^a-z0-9-]+/g, '-')
    .replace(/^-+|-+$/g, '')
    .slice(0, 100);
  return name === '' ? 'my-platform' : name;
}

function refuse(message, code) {
  process.stderr.write(`create-nuncio: ${message}\n`);
  process.exitCode = code;
}
