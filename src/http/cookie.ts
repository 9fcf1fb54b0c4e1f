/** Cookies of a request. */

/** @param cookies the `Cookie` header @returns the value of the first cookie of that name */
export function readCookie(cookies: string | undefined, name: string): string | undefined {
  const pairs = (cookies ?? '').split('; ');
  return pairs.find((pair) => pair.startsWith(`${name}=`))?.slice(name.length + 1);
}
