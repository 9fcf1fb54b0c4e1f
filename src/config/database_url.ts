/** Checks the URL of the database, and masks passwords in URLs that a message shows. */

import pg from 'pg';

const shape = 'a URL like postgres://user:password@host:5432/database';

/** @returns what is accepted, where the URL is not; without any part of the URL that can be a password */
export function databaseUrlError(text: string): string | undefined {
  // In the driver's URLs, an empty host with a password stands for a socket. `URL` rejects an empty host.
  if (!URL.canParse(text.replace('@/', '@socket/')) || !/^postgres(ql)?:\/\//.test(text)) return shape;
  // After # or ? in a password, the parser takes the user for the host.
  if (/^[^@]*(?:#.*|\?[^=]*)@/s.test(text)) return `${shape}, with %23 for # and %3F for ?`;
  const error = findDriverError(text);
  return error === undefined ? undefined : `${shape} (${error})`;
}

/** Errors that only the driver finds: invalid escapes, unreadable certificate files, invalid ports. */
function findDriverError(databaseUrl: string): string | undefined {
  try {
    const { host, port } = new pg.Client({ connectionString: databaseUrl });
    if (!(port >= 0 && port <= 65_535)) return 'invalid port';
    return /[\p{Cc}\p{Zs}\uFFFD]/u.test(host) ? 'invalid host' : undefined;
  } catch (error) {
    const { code, path, message } = error as NodeJS.ErrnoException;
    return path === undefined ? message : `${path}: ${code}`;
  }
}

/** Masks what can be a password, also in a malformed URL and in the form `host=… password=…`. */
export function withoutPassword(text: string): string {
  return (
    text
      // Everything before the last @ may be a password, including one that contains @ or a slash.
      .replace(/^.*@/s, '***@')
      // The @ is missing, and what follows the user is no port.
      .replace(/(\/\/[^/?#:]*:)(?!\d{0,5}(?:[/?#]|$)).*/s, '$1***')
      .replace(/(pass\w*|pwd)\s*=.*/is, '$1=***')
  );
}
