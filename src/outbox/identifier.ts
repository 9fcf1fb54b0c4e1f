/** Names of tables, as both databases quote them. */

/** Bytes of a table's name at most: PostgreSQL cuts names at 63, and names of other objects begin with it. */
const nameBytesMax = 50;

/** @throws TypeError for a name that cannot be quoted */
export function checkName(option: string, name: unknown): string {
  if (typeof name !== 'string' || name === '' || name.includes('\0') || !isWellFormed(name)) {
    throw new TypeError(`${option} must be a text that is not empty and has no NUL`);
  }
  if (Buffer.byteLength(name) > nameBytesMax) {
    throw new TypeError(`${option} may have ${nameBytesMax} bytes at most`);
  }
  return name;
}

export function quoteName(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** A literal of PostgreSQL, whatever `standard_conforming_strings` is. */
export function quoteText(text: string): string {
  const escaped = text.replaceAll('\\', '\\\\').replaceAll("'", "''");
  return `${text.includes('\\') ? ' E' : ''}'${escaped}'`;
}

function isWellFormed(text: string): boolean {
  return !/\p{Cs}/u.test(text);
}
