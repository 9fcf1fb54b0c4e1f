/** Validates and quotes table names. PostgreSQL and SQLite quote identifiers alike. */

/** Maximum length of a table name. PostgreSQL truncates identifiers at 63 bytes, and index and lease names add a suffix. */
const nameBytesMax = 50;

/** @throws TypeError when the name cannot be quoted or is too long */
export function checkName(option: string, name: unknown): string {
  if (typeof name !== 'string' || name === '' || name.includes('\0') || !isWellFormed(name)) {
    throw new TypeError(`${option} must be a string that is not empty and has no NUL`);
  }
  if (Buffer.byteLength(name) > nameBytesMax) {
    throw new TypeError(`${option} must have a maximum of ${nameBytesMax} bytes`);
  }
  return name;
}

export function quoteName(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** A PostgreSQL string literal that is valid for both values of `standard_conforming_strings`. */
export function quoteText(text: string): string {
  const escaped = text.replaceAll('\\', '\\\\').replaceAll("'", "''");
  return `${text.includes('\\') ? ' E' : ''}'${escaped}'`;
}

function isWellFormed(text: string): boolean {
  return !/\p{Cs}/u.test(text);
}
