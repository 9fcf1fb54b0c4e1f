/** What keeps a page short, whatever a user has and whatever apps chose: one thread renders the pages of everybody. */

import type { Html } from '../http/html.ts';

/** Shortens a text. A character that is cut in two is left out. */
export function shortened(text: string, charactersMax: number): string {
  if (text.length <= charactersMax) return text;
  return `${text.slice(0, charactersMax - 1).replace(/[\ud800-\udbff]$/, '')}…`;
}

/** Maximum characters of an app's name, as of a registration. A name of the operator's, or an id without a name, can be longer. */
const appNameCharactersMax = 100;

export function shownAppName(name: string): string {
  return shortened(name, appNameCharactersMax);
}

/** Returns the first of the items that have so many bytes together, and always the first one. */
export function fitting(items: readonly Html[], bytesMax: number): Html[] {
  let bytes = 0;
  const end = items.findIndex((item, index) => {
    bytes += Buffer.byteLength(item.toString());
    return index > 0 && bytes > bytesMax;
  });
  return items.slice(0, end < 0 ? items.length : end);
}
