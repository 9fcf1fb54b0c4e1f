/** Patterns of kinds: an exact name, `article.*` (whole segments only), or `*`. */

/** Returns every pattern that matches a kind: for `article.created` the name itself, `article.*` and `*`. */
export function patternsOf(kind: string): string[] {
  const words = kind.split('.');
  const patterns = [kind, '*'];
  for (let count = 1; count < words.length; count++) patterns.push(`${words.slice(0, count).join('.')}.*`);
  return patterns;
}

/** Whether a pattern matches at least one of the kinds. */
export function matchesAny(pattern: string, kinds: Iterable<string>): boolean {
  for (const kind of kinds) {
    if (patternsOf(kind).includes(pattern)) return true;
  }
  return false;
}
