/**
 * The checklists in docs/conformance*.md and the tests named after their rows: `oauth 12: …`, `webhooks 3, 4: …`.
 * Sources are read as text; the formatter guarantees their indentation.
 */

import { globSync, readFileSync } from 'node:fs';
import type { RanTest } from './ran_tests.ts';
import { testFolder } from './test_files.ts';

const root = new URL('../../../', import.meta.url);

export const checklists = [
  { prefix: 'oauth', document: 'docs/conformance.md', lines: 98 },
  { prefix: 'webhooks', document: 'docs/conformance-webhooks.md', lines: 81 },
  { prefix: 'agents', document: 'docs/conformance-agents.md', lines: 82 },
] as const;
export type Checklist = (typeof checklists)[number];

export interface Row {
  line: number;
  /** Test files that hold it, as paths below `test/`. */
  files: string[];
  difference: string;
}

export function readRows({ document }: Checklist): Row[] {
  return readFileSync(new URL(document, root), 'utf8')
    .split('\n')
    .flatMap((text): Row[] => {
      const [, line = '', , tests = '', difference = ''] = text.split('|').map((cell) => cell.trim());
      if (!/^\d+$/.test(line)) return [];
      const files = [...tests.matchAll(/`([^`]+)`/g)].map((match) => match[1] as string);
      return [{ line: Number(line), files, difference }];
    });
}

/** Returns the checklist rows that a test name refers to. */
export function linesOf(name: string, { prefix }: Checklist): number[] {
  const mentions = name.matchAll(new RegExp(`\\b${prefix} (\\d+(?:, \\d+)*):`, 'g'));
  return [...mentions].flatMap(([, numbers = '']) => numbers.split(', ').map(Number));
}

/**
 * Compares the results of a run with the checklists.
 * @param files the test files of the run
 * @returns a description of each missing test
 */
export function missingFrom(ran: readonly RanTest[], files: readonly string[]): string[] {
  return checklists.flatMap((checklist) => {
    const held = ran.flatMap((test) => linesOf(test.name, checklist).map((line) => ({ ...test, line })));
    const absent = readRows(checklist).flatMap(({ line, files: named }) =>
      named
        .filter((file) => files.includes(file))
        .filter((file) => !held.some((test) => test.line === line && test.file === file && test.hasPassed))
        .map((file) => `${checklist.prefix} ${line}: no test of ${file} ran and passed`),
    );
    const leftOut = held
      .filter(({ hasPassed }) => !hasPassed)
      .map(({ file, name }) => `${file}: "${name}" did not run or did not pass`);
    return [...absent, ...leftOut];
  });
}

export interface SourceTest {
  file: string;
  /** As written in the source, with template placeholders. */
  name: string;
  /** The source of the whole call. */
  text: string;
}

/** Returns every test of every file. */
export function readTests(): SourceTest[] {
  return globSync('**/*.test.ts', { cwd: testFolder })
    .sort()
    .flatMap((file) => testsIn(file, readFileSync(new URL(`test/${file}`, root), 'utf8')));
}

export function testsIn(file: string, source: string): SourceTest[] {
  const calls = source.matchAll(/^( *)test(?:\.\w+)?\(\s*(['"`])(.*?)\2,/gm);
  return [...calls].map((call) => ({
    file,
    name: call[3] as string,
    text: blockAt(source, call.index, call[1] as string),
  }));
}

/** Returns the text up to the closing line: the first with the same indentation and a bracket. */
function blockAt(source: string, index: number, indentation: string): string {
  const rest = source.slice(index);
  const firstLine = rest.slice(0, rest.indexOf('\n'));
  if (firstLine.endsWith(');')) return firstLine;
  const end = new RegExp(`^${indentation}[})\\]].*$`, 'gm');
  // A line such as `) {` or `}, async () => {` closes only the parameters or the options.
  for (const { 0: line, index: at } of rest.matchAll(end)) {
    if (!/[{([]$|=>$/.test(line)) return rest.slice(0, at + line.length);
  }
  return rest;
}

/**
 * Whether a test asserts anything, directly or through a function that it calls in its own file or in test/support.
 * Waiting for a condition that must come true (`until`, a subscriber's `waitFor`) counts as an assertion.
 */
export function hasAssertion({ file, text }: SourceTest): boolean {
  return asserts(text, readFileSync(new URL(`test/${file}`, root), 'utf8'), new Set());
}

function asserts(text: string, source: string, seen: Set<string>): boolean {
  if (/\b(assert(\.\w+)?|until|waitFor)\(/.test(text)) return true;
  for (const [, name = ''] of text.matchAll(/\b(\w+)\(/g)) {
    if (seen.has(name)) continue;
    seen.add(name);
    const [home, body] = declarationOf(name, source) ?? [];
    if (home !== undefined && body !== undefined && asserts(body, home, seen)) return true;
  }
  return false;
}

/** Returns the source that declares a function, and the function's text. */
function declarationOf(name: string, source: string): [string, string] | undefined {
  const declaration = new RegExp(`^( *)(?:export )?(?:(?:async )?function ${name}\\b|const ${name} = )`, 'm');
  const here = declaration.exec(source);
  if (here !== null) return [source, blockAt(source, here.index, here[1] as string)];
  const imported = new RegExp(
    `import \\{[^}]*\\b${name}\\b[^}]*\\} from '(?:\\.{1,2}/)+support/([\\w/]+\\.ts)'`,
  ).exec(source);
  if (imported === null) return undefined;
  const other = readFileSync(new URL(`test/support/${imported[1]}`, root), 'utf8');
  const there = declaration.exec(other);
  return there === null ? undefined : [other, blockAt(other, there.index, there[1] as string)];
}
