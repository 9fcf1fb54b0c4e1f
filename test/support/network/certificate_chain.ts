/**
 * Chains of certificates that nobody trusts and that may be slow to verify. Written in DER by hand (RFC 5280), because Node verifies
 * certificates but does not make them.
 */

import { generateKeyPairSync, type KeyObject, sign } from 'node:crypto';

interface Pair {
  publicKey: KeyObject;
  privateKey: KeyObject;
}

/** What a server needs, in PEM. */
export interface ServedChain {
  cert: string;
  key: string;
}

export interface ChainOptions {
  /** Certificates of authorities, which share one key. */
  authorities: number;
  authority?: Pair;
  /** Names that the last authority allows. */
  constraints?: readonly string[];
}

/** As many certificates as OpenSSL accepts, 100 KiB, with its slowest curve. */
export function makeLongChain(): ServedChain {
  return makeChain({ authorities: 96, authority: generateKeyPairSync('ec', { namedCurve: 'sect571r1' }) });
}

export function makeChain({
  authorities: count,
  authority = p256(),
  constraints = [],
}: ChainOptions): ServedChain {
  const leaf = p256();
  const names = Array.from({ length: count }, (_, index) => `authority ${index}`);
  const authorities = names.map((name, index) => {
    const of = index === count - 1 ? constraints : [];
    return certificate(name, names[Math.max(index - 1, 0)] as string, authority.publicKey, authority, of);
  });
  const own = certificate('slow.apps.example', names.at(-1) ?? 'authority', leaf.publicKey, authority, null);
  const pem = [own, ...authorities.reverse()].map(
    (der) => `-----BEGIN CERTIFICATE-----\n${der.toString('base64')}\n-----END CERTIFICATE-----\n`,
  );
  return { cert: pem.join(''), key: leaf.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
}

function p256(): Pair {
  return generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
}

/** OIDs of signature algorithms, commonName, basicConstraints and nameConstraints. */
const algorithms = {
  ec: der(0x30, der(0x06, Buffer.from('2a8648ce3d040302', 'hex'))),
  rsa: der(0x30, der(0x06, Buffer.from('2a864886f70d01010b', 'hex')), der(0x05)),
};
const commonName = der(0x06, Buffer.from('550403', 'hex'));
const basicConstraints = der(0x06, Buffer.from('551d13', 'hex'));
const nameConstraints = der(0x06, Buffer.from('551d1e', 'hex'));

/** @param constraints names that an authority allows; null if it is none */
function certificate(
  subject: string,
  issuer: string,
  key: KeyObject,
  signer: Pair,
  constraints: readonly string[] | null,
): Buffer {
  const algorithm = signer.publicKey.asymmetricKeyType === 'rsa' ? algorithms.rsa : algorithms.ec;
  const flag = der(0x30, constraints === null ? Buffer.alloc(0) : der(0x01, Buffer.from([0xff])));
  const allowed = (constraints ?? []).map((name) => der(0x30, der(0x82, Buffer.from(name))));
  const extensions = [
    der(0x30, basicConstraints, der(0x04, flag)),
    ...(allowed.length === 0
      ? []
      : [der(0x30, nameConstraints, der(0x04, der(0x30, der(0xa0, ...allowed))))]),
  ];
  const content = der(
    0x30,
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, Buffer.from([1])),
    algorithm,
    nameOf(issuer),
    der(0x30, der(0x17, Buffer.from('200101000000Z')), der(0x17, Buffer.from('491231000000Z'))),
    nameOf(subject),
    key.export({ type: 'spki', format: 'der' }),
    der(0xa3, der(0x30, ...extensions)),
  );
  const signature = sign('sha256', content, signer.privateKey);
  return der(0x30, content, algorithm, der(0x03, Buffer.from([0]), signature));
}

function nameOf(text: string): Buffer {
  return der(0x30, der(0x31, der(0x30, commonName, der(0x0c, Buffer.from(text)))));
}

/** One value of ITU-T X.690: a tag, the length and the content. */
function der(tag: number, ...parts: Uint8Array[]): Buffer {
  const content = Buffer.concat(parts);
  const { length } = content;
  const size =
    length < 0x80 ? [length] : length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff];
  return Buffer.concat([Buffer.from([tag, ...size]), content]);
}
