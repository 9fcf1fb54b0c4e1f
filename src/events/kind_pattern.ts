/** Patterns of kinds: an exact name, `article.*` (whole segments only), or `*`. */

/** Returns every pattern that matches a kind: for `article.created` the name itself, `article.*` and `*`. */
export function patternsOf(kind: string): string[] {
  const words = kind.split('.');
  const patterns = [kind, '*'];
  for (let count = 1; count < words.length; count++) patterns.push(`${words.slice(0, count).join('.')}.*`);
  return patterns;
}
