/** What another server says: read up to a limit, and shown without what could deceive its reader. */

/** Maximum characters of one text that is shown. */
const shownMax = 10_000;

/**
 * Reads a response. How long that may take is limited by the signal of the request.
 * @throws Error if it is longer than the maximum
 */
export async function readText(response: Response, bytesMax: number): Promise<string> {
  const chunks: Uint8Array[] = [];
  let received = 0;
  // Leaving the loop early cancels the stream and closes the connection.
  for await (const chunk of response.body ?? []) {
    received += (chunk as Uint8Array).length;
    if (received > bytesMax) throw new Error(`the response has more than ${bytesMax} bytes`);
    chunks.push(chunk as Uint8Array);
  }
  return Buffer.concat(chunks).toString();
}

/** Parses a JSON object. @returns undefined for any other text */
export function parseObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isObject ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

/** Text of others without the characters that move a terminal's cursor, change its colors or hide text. */
export function shown(text: string, max = shownMax): string {
  return text.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, '\u{fffd}').slice(0, max);
}
