/**
 * Loads the file that declares the platform. It and the files that it imports may be TypeScript in a package of any type:
 * `npm init` writes `"type": "commonjs"`, for which Node refuses `import` in a `.ts` file.
 */

import { existsSync, readFileSync } from 'node:fs';
import { type ResolveHookSync, registerHooks } from 'node:module';
import { dirname } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/**
 * @param file absolute path
 * @throws Error with a message of one line
 */
export async function importConfigFile(file: string): Promise<{ default?: unknown }> {
  if (!existsSync(file)) throw new Error('there is no such file');
  const hooks = registerHooks({ resolve: resolveTypeScript });
  try {
    return await import(pathToFileURL(file).href);
  } catch (error) {
    throw new Error(explain(error, dirname(file)), { cause: error });
  } finally {
    hooks.deregister();
  }
}

/** Reads TypeScript with `import` or `export` as a module, whatever the type of its package. */
const resolveTypeScript: ResolveHookSync = (specifier, context, nextResolve) => {
  const resolved = nextResolve(specifier, context);
  if (!resolved.url.endsWith('.ts') || resolved.format === 'module-typescript') return resolved;
  const isModule = /^\s*(?:import|export)\b/m.test(readFileSync(fileURLToPath(resolved.url), 'utf8'));
  return isModule ? { ...resolved, format: 'module-typescript' } : resolved;
};

/** @returns the message in one line, with the place in the folder's files if the stack has it */
function explain(error: unknown, folder: string): string {
  const { message = String(error), stack = '' } = (error ?? {}) as Partial<Error>;
  const [line = ''] = message.trim().split('\n');
  const places = stack.matchAll(/(?:^|[\s(])(file:\/\/\/[^\s)]+?|\/[^\s)]+?):(\d+)(?=[:\s)]|$)/g);
  for (const [, place = '', number] of places) {
    const path = place.startsWith('file:') ? fileURLToPath(place) : place;
    if (dirname(path).startsWith(folder)) return `${line} (${path}:${number})`;
  }
  return line;
}
