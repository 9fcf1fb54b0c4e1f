/** The code blocks of a document. */

import { readFileSync } from 'node:fs';

export interface CodeBlock {
  file: string;
  /** The line after the fence, from 1. */
  line: number;
  language: string;
  /** What follows the language, such as a file name. */
  name: string;
  text: string;
}

export function codeBlocks(file: string): CodeBlock[] {
  const page = readFileSync(file, 'utf8');
  return [...page.matchAll(/^( *)```(\S*) ?(.*)\n([\s\S]*?)^ *```$/gm)].map((match) => {
    const [, indent = '', language = '', name = '', text = ''] = match;
    return {
      file,
      line: page.slice(0, match.index).split('\n').length + 1,
      language,
      name,
      text: text.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
    };
  });
}

/** Code in the lines of a document, without blocks. */
export function inlineCode(file: string): string[] {
  const prose = readFileSync(file, 'utf8').replaceAll(/^ *```[\s\S]*?^ *```$/gm, '');
  return [...prose.matchAll(/`([^`]+)`/g)].map(([, text = '']) => text.replaceAll(/\s+/g, ' '));
}
