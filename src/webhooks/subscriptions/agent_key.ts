/**
 * The identity of an agent's subscription: the same grant, URL, kind and arguments always have the same id, so subscribing again
 * refreshes. Arguments are compared as canonical JSON, in which the order of members and the spelling of numbers do not matter
 * (RFC 8785).
 */

import { hash } from 'node:crypto';

/** Maximum levels of the arguments. */
const argumentDepthMax = 16;

/**
 * Writes a value that was parsed from JSON as canonical JSON (RFC 8785): members sorted by UTF-16 code units, numbers and strings as
 * ECMAScript writes them.
 * @throws RangeError if the value has more than `argumentDepthMax` levels
 */
export function canonicalJson(value: unknown, depth = argumentDepthMax): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (depth === 0) throw new RangeError('the value has too many levels');
  if (Array.isArray(value)) return `[${value.map((each) => canonicalJson(each, depth - 1)).join(',')}]`;
  // Without a comparison function, `sort` compares UTF-16 code units.
  const members = Object.keys(value)
    .sort()
    .map(
      (name) =>
        `${JSON.stringify(name)}:${canonicalJson((value as Record<string, unknown>)[name], depth - 1)}`,
    );
  return `{${members.join(',')}}`;
}

export interface AgentIdentity {
  /** The grant. */
  principal: string;
  /** Normalized, as `URL` writes it; null for polling. */
  url: string | null;
  /** The kind. */
  name: string;
  /** Canonical JSON. */
  arguments: string;
}

/** The id of a subscription, as agents see it: `sub_` and 128 bits of a SHA-256 in hexadecimal. */
export function agentKey({ principal, url, name, arguments: canonical }: AgentIdentity): string {
  const text = `{"arguments":${canonical},"name":${JSON.stringify(name)},"principal":${JSON.stringify(principal)},"url":${JSON.stringify(url)}}`;
  return `sub_${hash('sha256', text, 'hex').slice(0, 32)}`;
}
