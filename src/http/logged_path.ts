/** The path of a request as the log and traces show it. */

/** A long segment that is neither an id of this server nor the URL of an app: a token or secret that a client put there by mistake. */
const secretSegment =
  /(?<=\/)(?![0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\/|$))(?!https?(?::|%3a))[^/]{32,}/gi;

/** Without the query, which may contain authorization codes. */
export function loggedPath(url: string): string {
  return (url.split('?', 1)[0] as string).replace(secretSegment, '[hidden]');
}
