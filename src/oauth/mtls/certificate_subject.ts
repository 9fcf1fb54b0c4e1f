/**
 * Compares the one subject value that a client is registered with to the subject of its certificate (RFC 8705 section
 * 2.1.2).
 */

import type { X509Certificate } from 'node:crypto';
import { canonicalAddress } from '../../egress/address.ts';

export type SubjectProperty =
  | 'tls_client_auth_subject_dn'
  | 'tls_client_auth_san_dns'
  | 'tls_client_auth_san_uri'
  | 'tls_client_auth_san_ip'
  | 'tls_client_auth_san_email';

/** Prefix of each kind of name in Node's text form of `subjectAltName`. */
const prefixes: Readonly<Partial<Record<SubjectProperty, string>>> = {
  tls_client_auth_san_dns: 'DNS',
  tls_client_auth_san_uri: 'URI',
  tls_client_auth_san_ip: 'IP Address',
  tls_client_auth_san_email: 'email',
};

/** Whether the certificate has the expected value of the registered property. */
export function certificateMatches(
  certificate: Pick<X509Certificate, 'subject' | 'subjectAltName'>,
  property: SubjectProperty,
  expected: string,
): boolean {
  if (property === 'tls_client_auth_subject_dn') return isSubject(certificate.subject, expected);
  const wanted = normalize(property, expected);
  const prefix = `${prefixes[property]}:`;
  return splitNames(certificate.subjectAltName ?? '')
    .filter((name) => name.startsWith(prefix))
    .some((name) => normalize(property, unquote(name.slice(prefix.length))) === wanted);
}

function normalize(property: SubjectProperty, name: string): string {
  if (property === 'tls_client_auth_san_dns') return name.toLowerCase();
  if (property === 'tls_client_auth_san_ip') return canonicalAddress(name.toLowerCase());
  return name;
}

/** Splits the text at commas. A name with special characters is a JSON string. */
function splitNames(text: string): string[] {
  return [...text.matchAll(/(?:[^",]|"(?:[^"\\]|\\.)*")+/g)].map(([name]) => name.trim());
}

function unquote(text: string): string {
  if (!text.startsWith('"')) return text;
  try {
    return String(JSON.parse(text));
  } catch {
    return text;
  }
}

/**
 * @param subject in Node's form: one line for each part, most general part first
 * @param expected in RFC 4514 form: separated by commas, most specific part first
 */
function isSubject(subject: string, expected: string): boolean {
  const parts = parseDistinguishedName(expected);
  if (parts === null || subject === '') return false;
  const lines = subject.split('\n').reverse();
  return (
    lines.length === parts.length &&
    lines.every((line, index) => {
      const at = line.indexOf('=');
      const [type, value] = parts[index] as [string, string];
      return line.slice(0, at).toUpperCase() === type && withoutEscapes(line.slice(at + 1)) === value;
    })
  );
}

/** @returns null if the text is not a distinguished name, or has multi-valued parts, which are not supported */
function parseDistinguishedName(text: string): [type: string, value: string][] | null {
  const parts = text.match(/(?:[^,\\]|\\.)+/gs) ?? [];
  const parsed = parts.map((part): [string, string] | null => {
    const match = /^([A-Za-z][A-Za-z0-9.-]*|[\d.]+)\s*=((?:[^+\\]|\\.)*)$/s.exec(part.trimStart());
    return match === null
      ? null
      : [(match[1] as string).toUpperCase(), withoutEscapes(trim(match[2] as string))];
  });
  const isWhole = parts.length > 0 && parts.join(',') === text && !parsed.includes(null);
  return isWhole ? (parsed as [string, string][]) : null;
}

/** A pattern for blanks at both ends would take cubic time for an app that registers thousands of them. */
function trim(value: string): string {
  const end = value.trimEnd().length;
  let backslashes = 0;
  while (value[end - 1 - backslashes] === '\\') backslashes += 1;
  // A blank behind a backslash is escaped.
  return value.slice(0, end + (backslashes % 2)).trimStart();
}

/** RFC 4514 section 2.4: `\` and two hexadecimal digits encode a byte, `\` and a character encode the character. */
function withoutEscapes(value: string): string {
  return value.replaceAll(/(?:\\[0-9A-Fa-f]{2})+|\\(.)/gs, (run, character: string | undefined) =>
    character === undefined ? Buffer.from(run.replaceAll('\\', ''), 'hex').toString('utf8') : character,
  );
}
