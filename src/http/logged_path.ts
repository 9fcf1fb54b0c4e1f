/** The path of a request as the log and traces show it. */

/** A long segment that is neither an id of this server nor the URL of an app: a token or secret that a client put there by mistake. */
const secretSegment =
  /(?<=\/)(?![0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\/|$))(?!https?(?::|%3a))[^/]{32,}/gi;

/** Maximum UTF-16 code units. Anybody can request a path of 16 KB, which would fill the disk of the log. */
const charactersMax = 512;

/** Without the query, which may contain authorization codes. */
export function loggedPath(url: string): string {
  const path = (url.split('?', 1)[0] as string).replace(secretSegment, '[hidden]');
  return path.length <= charactersMax ? path : `${path.slice(0, charactersMax)}…`;
}
