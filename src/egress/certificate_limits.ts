/**
 * Limits on the certificates of a host, so that OpenSSL verifies them in some 15 ms at most. They are read without OpenSSL, which spends time on
 * what it reads, and as strict DER (ITU-T X.690): OpenSSL accepts other encodings of the same values, which could hide them from a search.
 */

import { EgressError } from './error.ts';

/** Maximum number of certificates. */
const certificatesMax = 10;
/**
 * Maximum bytes of the extensions `nameConstraints` of a chain, and of them multiplied by the bytes of all names: each constraint is compared
 * to each name of the certificates below.
 */
const nameConstraintsMax = { bytes: 1_024, product: 1_048_576 };
/** Maximum bytes of an RSA key, and its greatest public exponent. */
const rsaBytesMax = 1_024;
const rsaExponentMax = 65_537;

/** The algorithms of keys in DER, identifier and parameters: curves P-256, P-384 and P-521, Ed25519, Ed448, ML-DSA-44, -65 and -87. */
const keyAlgorithms: ReadonlySet<string> = new Set([
  '06072a8648ce3d020106082a8648ce3d030107',
  '06072a8648ce3d020106052b81040022',
  '06072a8648ce3d020106052b81040023',
  '06032b6570',
  '06032b6571',
  '0609608648016503040311',
  '0609608648016503040312',
  '0609608648016503040313',
]);
/** `rsaEncryption` and `id-RSASSA-PSS`. */
const rsaAlgorithms: ReadonlySet<string> = new Set(['2a864886f70d010101', '2a864886f70d01010a']);

/** Identifiers of extensions. */
const nameConstraints = '551d1e';
const alternativeNames = '551d11';
const crlPoints = '551d1f';

const tags = { boolean: 0x01, integer: 0x02, bits: 0x03, octets: 0x04, identifier: 0x06, sequence: 0x30 };
/** Fields with the numbers 0 and 3, such as the version and the extensions. */
const firstTag = 0xa0;
const extensionsTag = 0xa3;

/** @throws EgressError `tls_error` */
export function checkCertificates(certificates: readonly Buffer[]): void {
  if (certificates.length > certificatesMax)
    refuse(`the host sent more than ${certificatesMax} certificates`);
  const sizes: Sizes = { constraints: 0, names: 0 };
  for (const certificate of certificates) readCertificate(certificate, sizes);
  const { bytes, product } = nameConstraintsMax;
  if (sizes.constraints > bytes || sizes.constraints * sizes.names > product)
    refuse('the host sent certificates with too many name constraints');
}

/** Bytes of all certificates together. */
interface Sizes {
  constraints: number;
  names: number;
}

/** RFC 5280 section 4.1. @param sizes those of this certificate are added */
function readCertificate(certificate: Buffer, sizes: Sizes): void {
  const whole = new DerReader(certificate);
  const content = new DerReader(new DerReader(whole.read(tags.sequence)).read(tags.sequence));
  whole.end();
  if (content.next === firstTag) content.read(firstTag);
  content.read(tags.integer);
  content.read(tags.sequence);
  content.read(tags.sequence);
  content.read(tags.sequence);
  sizes.names += content.read(tags.sequence).length;
  if (!isFastKey(content.read(tags.sequence)))
    refuse('the host sent a certificate with a key that is not supported');
  // Other fields, unique identifiers that RFC 5280 forbids to authorities, are refused.
  if (content.next === undefined) return;
  const wrapped = new DerReader(content.read(extensionsTag));
  content.end();
  const extensions = new DerReader(wrapped.read(tags.sequence));
  wrapped.end();
  while (extensions.next !== undefined) {
    const extension = new DerReader(extensions.read(tags.sequence));
    const identifier = extension.read(tags.identifier).toString('hex');
    if (extension.next === tags.boolean) extension.read(tags.boolean);
    const value = extension.read(tags.octets);
    extension.end();
    if (identifier === nameConstraints) sizes.constraints += value.length;
    if (identifier === alternativeNames) sizes.names += value.length;
    if (identifier === crlPoints && hasRelativeName(value))
      refuse('the host sent a certificate with revocation lists that are not supported');
  }
}

/** The extension `cRLDistributionPoints` (RFC 5280 section 4.2.1.13). For each relative name, OpenSSL encodes the issuer's name again. */
function hasRelativeName(value: Buffer): boolean {
  const whole = new DerReader(value);
  const points = new DerReader(whole.read(tags.sequence));
  whole.end();
  while (points.next !== undefined) {
    const point = new DerReader(points.read(tags.sequence));
    if (point.next === firstTag && new DerReader(point.read(firstTag)).next !== firstTag) return true;
  }
  return false;
}

/** The field `subjectPublicKeyInfo` (RFC 5280 section 4.1.2.7; RSA: RFC 8017 appendix A.1.1). */
function isFastKey(info: Buffer): boolean {
  const fields = new DerReader(info);
  const algorithm = fields.read(tags.sequence);
  const bits = fields.read(tags.bits);
  fields.end();
  if (keyAlgorithms.has(algorithm.toString('hex'))) return true;
  const identifier = new DerReader(algorithm).read(tags.identifier).toString('hex');
  if (!rsaAlgorithms.has(identifier) || bits[0] !== 0) return false;
  const key = new DerReader(bits.subarray(1));
  const numbers = new DerReader(key.read(tags.sequence));
  key.end();
  const [modulus, exponent] = [numbers.read(tags.integer), numbers.read(tags.integer)];
  numbers.end();
  // A positive number may begin with a zero.
  const modulusBytes = modulus[0] === 0 ? modulus.length - 1 : modulus.length;
  if (modulusBytes > rsaBytesMax || exponent.length < 1 || exponent.length > 3) return false;
  return exponent.readUIntBE(0, exponent.length) <= rsaExponentMax;
}

/** Reads values in strict DER, one after another. */
class DerReader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  /** The tag of the next value; undefined at the end. */
  get next(): number | undefined {
    return this.#bytes[this.#at];
  }

  /** @returns the content of the next value, which must have this tag */
  read(tag: number): Buffer {
    const bytes = this.#bytes;
    const first = bytes[this.#at + 1] ?? 0x80;
    // The length has one byte, or one to three after a byte with their number, no more than it needs.
    const lengthBytes = first < 0x80 ? 0 : first - 0x80;
    const contentAt = this.#at + 2 + lengthBytes;
    if (bytes[this.#at] !== tag || first === 0x80 || lengthBytes > 3 || contentAt > bytes.length)
      unreadable();
    const length = lengthBytes === 0 ? first : bytes.readUIntBE(this.#at + 2, lengthBytes);
    const isShortest = lengthBytes === 0 || length >= (lengthBytes === 1 ? 0x80 : 256 ** (lengthBytes - 1));
    const end = contentAt + length;
    if (!isShortest || end > bytes.length) unreadable();
    this.#at = end;
    return bytes.subarray(contentAt, end);
  }

  /** Nothing may follow. */
  end(): void {
    if (this.next !== undefined) unreadable();
  }
}

function unreadable(): never {
  return refuse('the host sent a certificate that cannot be read');
}

function refuse(reason: string): never {
  throw new EgressError('tls_error', { reason });
}
