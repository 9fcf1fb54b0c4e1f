/**
 * Limits the heads of responses, in which parameters of requests come back: percent-encoding makes up to nine characters of a byte. Proxies have a limit, too, and some
 * take a node for failed that sends a longer head: nginx sends nobody there for ten seconds.
 */

import { type IncomingMessage, type OutgoingHttpHeader, ServerResponse } from 'node:http';

/** Bytes of all header fields. nginx takes 32 KiB if it is configured as in docs/operations.md. */
const headLengthMax = 24_576;

type Value = OutgoingHttpHeader | readonly string[] | undefined;
type Fields = Record<string, OutgoingHttpHeader | undefined>;

/** A response that leaves out its longest header fields if its head would be too long. A redirect without its `Location` becomes 400. */
export class BoundedResponse<
  Request extends IncomingMessage = IncomingMessage,
> extends ServerResponse<Request> {
  /** Characters of the fields that were set. Those that were replaced count, too. */
  #lengthMax = 0;

  override setHeader(name: string, value: number | string | readonly string[]): this {
    this.#lengthMax += lengthOfField(name, value);
    return super.setHeader(name, value);
  }

  override appendHeader(name: string, value: string | readonly string[]): this {
    this.#lengthMax += lengthOfField(name, value);
    return super.appendHeader(name, value);
  }

  // biome-ignore lint/suspicious/noExplicitAny: as ServerResponse declares it
  override writeHead(statusCode: number, ...rest: any[]): this {
    const last = rest.at(-1);
    // This server's own lists of fields have none of a request.
    const given: Fields = typeof last === 'object' && last !== null && !Array.isArray(last) ? last : {};
    const length = lengthOf(given);
    const isShort =
      length + this.#lengthMax <= headLengthMax || length + lengthOf(this.getHeaders()) <= headLengthMax;
    if (isShort) return super.writeHead(statusCode, ...rest);
    const left = longestOf({ ...this.getHeaders(), ...given });
    for (const name of left) {
      this.removeHeader(name);
      delete given[name];
    }
    const hasLostPlace = left.some((name) => name.toLowerCase() === 'location');
    return super.writeHead(hasLostPlace ? 400 : statusCode, ...rest);
  }
}

function lengthOf(fields: Fields): number {
  let length = 0;
  for (const name in fields) length += lengthOfField(name, fields[name]);
  return length;
}

/** A character of a field is a byte: Node.js refuses others. */
function lengthOfField(name: string, value: Value): number {
  if (typeof value === 'string') return name.length + value.length;
  if (!Array.isArray(value)) return name.length;
  return value.reduce((sum: number, each: string) => sum + name.length + each.length, 0);
}

/** The names of so many of the longest fields that the others are short enough. */
function longestOf(fields: Fields): string[] {
  const byLength = Object.entries(fields)
    .map(([name, value]) => ({ name, length: lengthOf({ [name]: value }) }))
    .sort((a, b) => b.length - a.length);
  let total = lengthOf(fields);
  const longest: string[] = [];
  for (const { name, length } of byLength) {
    if (total <= headLengthMax) break;
    longest.push(name);
    total -= length;
  }
  return longest;
}
