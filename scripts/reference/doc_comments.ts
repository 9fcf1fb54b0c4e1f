/**
 * Reads the doc comments of settings from the sources, so that the documents and the editor of an operator say the same. A setting without
 * a comment of its own shares that of the one before it.
 */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './markdown.ts';

export interface Setting {
  names: string[];
  meaning: string;
  /** The text of the tag `@default`; empty if the setting is required. */
  default: string;
}

/**
 * @param file path of the source, from the root of the repository
 * @param start the line before the first setting, such as `export interface Quotas {`
 */
export function readSettings(file: string, start: string): Setting[] {
  const text = readFileSync(join(root, file), 'utf8');
  const from = text.indexOf(start);
  if (from < 0) throw new Error(`${file} has no line ${start}`);
  const [, block = ''] = /^.*\n([\s\S]*?)^[\]}]/m.exec(text.slice(from)) ?? [];
  const settings: Setting[] = [];
  let comment: string | null = null;
  for (const [, doc, property, variable] of block.matchAll(
    /^ {2}\/\*\*([\s\S]*?)\*\/$|^ {2}(?:readonly )?(\w+)\??: |^ {2}'(\w+)',$/gm,
  )) {
    const name = property ?? variable;
    if (name === undefined) comment = doc ?? null;
    else if (comment === null) settings.at(-1)?.names.push(name);
    else {
      settings.push({ names: [name], ...readComment(comment) });
      comment = null;
    }
  }
  return settings;
}

function readComment(comment: string): Omit<Setting, 'names'> {
  const text = comment
    .replaceAll(/^\s*\* ?/gm, '')
    .replaceAll(/\s+/g, ' ')
    .trim();
  const [meaning = '', value = ''] = text.split(' @default ');
  return { meaning, default: value };
}
