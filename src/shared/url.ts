/**
 * URLs that strangers send. Node.js takes quadratic time to encode the host of one in ASCII: 36 ms for 16 KB of different letters, above which
 * newer versions refuse it, and 250 ms for 54 KB with Node.js 22. URLs of ASCII cost little, whatever their length.
 */

/** Bytes of a URL that is not ASCII. No host name is nearly as long: these have at most 253 characters once they are encoded. */
const otherBytesMax = 2_048;

/** Whether the URL parser could take long for the text. */
export function isCostlyUrl(text: string): boolean {
  // A character has up to three bytes for each of its units.
  return text.length > otherBytesMax / 3 && Buffer.byteLength(text) > otherBytesMax && !isAscii(text);
}

/** Like `URL.parse`. @returns null also for a text that would cost much */
export function parseUrl(text: string): URL | null {
  return isCostlyUrl(text) ? null : URL.parse(text);
}

function isAscii(text: string): boolean {
  return Buffer.byteLength(text) === text.length;
}
