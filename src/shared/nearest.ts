/** Suggests the intended name for a mistyped one. */

/** Maximum edit distance of a suggestion. */
const distanceMax = 3;

/** @returns the known name with the smallest edit distance; undefined if none is close */
export function nearestName(text: string, names: readonly string[]): string | undefined {
  let best: string | undefined;
  let bestDistance = Math.min(distanceMax, Math.floor(text.length / 2)) + 1;
  for (const name of names) {
    const distance = editDistance(text, name);
    if (distance < bestDistance) [best, bestDistance] = [name, distance];
  }
  return best;
}

/** Why a name of a declaration is refused, with what to write instead: the nearest known name, or all of them. */
export function unknownName(name: string, known: readonly string[]): string {
  const near = nearestName(name, known);
  const advice = near === undefined ? `; there are ${known.join(', ')}` : `: did you mean ${near}?`;
  return `is not a known setting${advice}`;
}

/**
 * Reports the members of a declaration that do not exist. Node strips types, so only this finds a misspelled or removed member.
 * @param known an object with a member for each known name
 * @param place prefix of the places in reports; empty for the sections
 */
export function reportUnknown(
  declared: object,
  known: object,
  place: string,
  report: (place: string, reason: string) => void,
): void {
  for (const name of Object.keys(declared)) {
    if (Object.hasOwn(known, name)) continue;
    report(place === '' ? name : `${place}.${name}`, unknownName(name, Object.keys(known)));
  }
}

/** Levenshtein distance. */
function editDistance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let line = 1; line <= from.length; line += 1) {
    const next = [line];
    for (let column = 1; column <= to.length; column += 1) {
      const replaced = (row[column - 1] as number) + (from[line - 1] === to[column - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[column] as number) + 1, (next[column - 1] as number) + 1));
    }
    row = next;
  }
  return row[to.length] as number;
}
