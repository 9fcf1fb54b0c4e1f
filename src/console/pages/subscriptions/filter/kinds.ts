/** Which kinds a filter applies to. */

import type { EventKind } from '../../../api/generated.ts';

/** The kinds that match one of the patterns and that filters apply to. @param patterns names, `article.*` or `*` */
export function filteredKinds(kinds: readonly EventKind[], patterns: readonly string[]): EventKind[] {
  const matches = (name: string, pattern: string) =>
    pattern === '*' || pattern === name || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1)));
  return kinds.filter(
    ({ name, built_in: isBuiltIn }) => !isBuiltIn && patterns.some((pattern) => matches(name, pattern)),
  );
}
