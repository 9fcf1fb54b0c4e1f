/** Type-checks code blocks of documents against the exports of this checkout. */

import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import * as nuncio from '../../../src/index.ts';
import type { CodeBlock } from '../values/code_blocks.ts';

/** What the text around a block introduces: the reader's own variables, and those of an earlier block. Only `any` where it is the reader's. */
export const given: Readonly<Record<string, string>> = {
  app: 'any',
  articles: 'any',
  authProvider: "import('@modelcontextprotocol/client').OAuthClientProvider",
  callbackUrl: 'URL',
  clientId: 'string',
  clientSecret: 'string',
  events: "Parameters<ReturnType<typeof import('nuncio/protect').createPublisher>['publish']>[0]",
  issuer: 'string',
  keepForLater: '(events: unknown) => Promise<void>',
  notesOf: '(account: string | null) => unknown[]',
  pool: '{ query(text: string, values: unknown[]): Promise<{ rowCount: number }> }',
  priceOf:
    '(account: string | null, country: string, grams: number, signal: AbortSignal) => Promise<number | undefined>',
  principal: "ReturnType<ReturnType<typeof import('nuncio/protect').createProtector>['principal']>",
  protect: "ReturnType<typeof import('nuncio/protect').createProtector>",
  publisher: "ReturnType<typeof import('nuncio/protect').createPublisher>",
  tickets: "import('nuncio').Collection",
};

const entries = {
  nuncio: 'src/index.ts',
  'nuncio/server': 'src/library.ts',
  'nuncio/protect': 'src/protect/protect.ts',
  'nuncio/outbox': 'src/outbox/outbox.ts',
  'nuncio/verify': 'src/verify/verify.ts',
};

/** Imports what a fragment of a `nuncio.config.ts` takes for granted. */
function withImports(text: string, isConfig: boolean): string {
  const names = Object.keys(nuncio).filter((name) => new RegExp(`\\b${name}\\b`).test(text));
  return isConfig && !text.includes("from 'nuncio'")
    ? `import { ${names.join(', ')} } from 'nuncio';\n${text}`
    : text;
}

/**
 * @returns the errors, by block
 * @param blocks of one language: TypeScript is strict, JavaScript is not
 */
export async function typeErrors(
  scope: { after(close: () => Promise<void>): unknown },
  blocks: readonly CodeBlock[],
): Promise<string[]> {
  const cache = resolve('node_modules/.cache');
  await mkdir(cache, { recursive: true });
  const folder = await mkdtemp(join(cache, 'blocks-'));
  scope.after(() => rm(folder, { recursive: true, force: true }));
  const isTyped = blocks[0]?.language === 'ts';
  const paths = Object.entries(entries).map(([name, path]) => [name, [resolve(path)]]);
  const compilerOptions = {
    target: 'esnext',
    lib: ['esnext'],
    module: 'nodenext',
    types: ['node'],
    typeRoots: [resolve('node_modules/@types')],
    noEmit: true,
    allowJs: true,
    checkJs: true,
    strict: isTyped,
    allowImportingTsExtensions: true,
    skipLibCheck: true,
    paths: Object.fromEntries(paths),
  };
  await writeFile(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['*'] }));
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
  const declarations = Object.entries(given).map(([name, type]) => `declare const ${name}: ${type};\n`);
  await writeFile(join(folder, 'given.d.ts'), declarations.join(''));
  for (const [index, { language, text }] of blocks.entries())
    await writeFile(join(folder, `block${index}.${language}`), `${withImports(text, isTyped)}\nexport {};\n`);
  const compiler = resolve('node_modules/typescript/bin/tsc');
  const output = await new Promise<string>((done) =>
    execFile(process.execPath, [compiler, '-p', folder, '--pretty', 'false'], (_error, out, err) =>
      done(out + err),
    ),
  );
  return output.split('\n').flatMap((line) => {
    const [, index, text = ''] = /block(\d+)\.[tj]s\(\d+,\d+\): error (.*)$/.exec(line) ?? [];
    if (index !== undefined) {
      const { file, line: at } = blocks[Number(index)] as CodeBlock;
      return [`${file}:${at}: ${text}`];
    }
    // The sources are not strict enough for the mode of JavaScript; the project's own check covers them.
    return /error TS/.test(line) && !line.startsWith('src/') ? [line] : [];
  });
}
