/**
 * Estimates the memory of parsed JSON. It can take 25 times the bytes of its text: `[{}],` has five, and an array with an empty object some 110.
 * What is limited by its text alone can use up the memory of a node.
 */

/** Bytes of an object or array, of a text, and of a place in an object or array, besides what is written. */
const containerBytes = 60;
const textBytes = 24;
const itemBytes = 8;

const quote = 34;
const comma = 44;
const bracket = 91;
const backslash = 92;
const brace = 123;

/** @param json as bytes or as a text @returns bytes, with those of the text */
export function parsedBytesOf(json: Uint8Array | string): number {
  const bytes = typeof json === 'string' ? Buffer.from(json) : json;
  let parsed = bytes.length;
  let isText = false;
  for (let at = 0; at < bytes.length; at += 1) {
    switch (bytes[at]) {
      case backslash:
        // Only texts have it.
        at += 1;
        break;
      case quote:
        isText = !isText;
        if (isText) parsed += textBytes;
        break;
      case brace:
      case bracket:
        if (!isText) parsed += containerBytes;
        break;
      case comma:
        if (!isText) parsed += itemBytes;
        break;
    }
  }
  return parsed;
}
