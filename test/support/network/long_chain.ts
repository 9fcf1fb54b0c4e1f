/**
 * A chain of certificates that is slow to verify: as many as a handshake may contain, signed with the slowest curve. Written in DER by hand
 * (RFC 5280), because Node verifies certificates but does not make them.
 */

import { generateKeyPairSync, type KeyObject, sign } from 'node:crypto';

/** OpenSSL refuses more than 100 KiB. */
const certificatesMax = 96;

interface Pair {
  publicKey: KeyObject;
  privateKey: KeyObject;
}

/** @returns the chain of a server, with its key, in PEM. Nobody trusts its root */
export function makeLongChain(): { cert: string; key: string } {
  const authority = generateKeyPairSync('ec', { namedCurve: 'sect571r1' });
  const leaf = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
  const names = Array.from({ length: certificatesMax }, (_, index) => `authority ${index}`);
  const authorities = names.map((name, index) =>
    certificate(name, names[Math.max(index - 1, 0)] as string, authority, authority.privateKey),
  );
  const own = certificate('slow.apps.example', names.at(-1) as string, leaf, authority.privateKey);
  const pem = [own, ...authorities.reverse()].map(
    (der) => `-----BEGIN CERTIFICATE-----\n${der.toString('base64')}\n-----END CERTIFICATE-----\n`,
  );
  return { cert: pem.join(''), key: leaf.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
}

/** OIDs of ecdsa-with-SHA256, commonName and basicConstraints. */
const ecdsaWithSha256 = der(0x30, der(0x06, Buffer.from('2a8648ce3d040302', 'hex')));
const commonName = der(0x06, Buffer.from('550403', 'hex'));
const basicConstraints = der(0x06, Buffer.from('551d13', 'hex'));

function certificate(subject: string, issuer: string, { publicKey }: Pair, signer: KeyObject): Buffer {
  const isAuthority = publicKey.asymmetricKeyDetails?.namedCurve === 'sect571r1';
  const constraints = der(0x30, isAuthority ? der(0x01, Buffer.from([0xff])) : Buffer.alloc(0));
  const content = der(
    0x30,
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, Buffer.from([1])),
    ecdsaWithSha256,
    nameOf(issuer),
    der(0x30, der(0x17, Buffer.from('200101000000Z')), der(0x17, Buffer.from('491231000000Z'))),
    nameOf(subject),
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, der(0x30, der(0x30, basicConstraints, der(0x04, constraints)))),
  );
  return der(0x30, content, ecdsaWithSha256, der(0x03, Buffer.from([0]), sign('sha256', content, signer)));
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
