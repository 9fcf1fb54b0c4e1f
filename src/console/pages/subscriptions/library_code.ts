/**
 * Verification code with the subscriber's libraries: `nuncio/verify` of the npm package, and clients/python, clients/go and
 * clients/java. A test runs it on deliveries that the server has signed.
 */

import type { Sample } from './code_sample.ts';

/** The headers that the libraries read, with their default names. */
const defaultNames = {
  event: 'Nuncio-Event',
  delivery: 'Nuncio-Delivery',
  signature: 'Nuncio-Signature',
  sequence: 'Nuncio-Sequence',
  account: 'Nuncio-Account',
} as const;

type Role = keyof typeof defaultNames;

/** The names of headers as `/meta` shows them. */
export type ServerHeaders = Readonly<Partial<Record<Role, string>>>;

/** @param metaUrl the URL of `/meta`, for `ed25519` */
export function librarySamples(signature: string, headers: ServerHeaders, metaUrl: string): Sample[] {
  const facts = { changed: changedNames(headers), metaUrl };
  return signature === 'ed25519' ? keySamples(facts) : secretSamples(facts);
}

interface Facts {
  changed: [role: Role, name: string][];
  metaUrl: string;
}

function changedNames(headers: ServerHeaders): [Role, string][] {
  const roles = Object.keys(defaultNames) as Role[];
  return roles.flatMap((role): [Role, string][] => {
    const name = headers[role];
    return name === undefined || name === defaultNames[role] ? [] : [[role, name]];
  });
}

function secretSamples({ changed }: Facts): Sample[] {
  return [
    {
      language: 'Node.js',
      code: `import { verify } from 'nuncio/verify';

// body: the bytes of the request, before any JSON parser. Throws a VerificationError.
export function verifyDelivery(body, headers, secret) {
  return verify({ headers, body, secret${nodeNames(changed)} });
}`,
    },
    {
      language: 'Python',
      code: `from nuncio_verify import Delivery, verify

# body: the bytes of the request, before any JSON parser. Raises a VerificationError.
def verify_delivery(body: bytes, headers, secret: str) -> Delivery:
    return verify(headers=headers, body=body, secret=secret${pythonNames(changed)})`,
    },
    {
      language: 'Go',
      code: `// body: the bytes of the request. The error is a *verify.Error.
func VerifyDelivery(body []byte, header http.Header, secret string) (verify.Delivery, error) {
	return verify.Verify(header, body, verify.Options{Secret: secret${goNames(changed)}})
}`,
    },
    {
      language: 'Java',
      code: `// body: the bytes of the request. Throws a DeliveryException.
static Delivery verifyDelivery(byte[] body, Map<String, List<String>> headers, String secret) {
  return Verifier.builder().secret(secret)${javaNames(changed)}.build().verify(headers, body);
}`,
    },
  ];
}

function keySamples({ changed, metaUrl }: Facts): Sample[] {
  return [
    {
      language: 'Node.js',
      code: `import { verify } from 'nuncio/verify';

// body: the bytes of the request, before any JSON parser. Throws a VerificationError.
export function verifyDelivery(body, headers) {
  return verify({ headers, body, publicKeys: '${metaUrl}'${nodeNames(changed)} });
}`,
    },
    {
      language: 'Python',
      code: `# nuncio-verify[ed25519]
from nuncio_verify import Delivery, verify

# body: the bytes of the request, before any JSON parser. Raises a VerificationError.
def verify_delivery(body: bytes, headers) -> Delivery:
    return verify(headers=headers, body=body, public_keys="${metaUrl}"${pythonNames(changed)})`,
    },
    {
      language: 'Go',
      code: `var publicKeys = verify.KeysURL("${metaUrl}")

// body: the bytes of the request. The error is a *verify.Error.
func VerifyDelivery(body []byte, header http.Header) (verify.Delivery, error) {
	return verify.Verify(header, body, verify.Options{PublicKeys: publicKeys${goNames(changed)}})
}`,
    },
    {
      language: 'Java',
      code: `static final PublicKeys PUBLIC_KEYS = PublicKeys.fromUrl("${metaUrl}");

// body: the bytes of the request. Throws a DeliveryException.
static Delivery verifyDelivery(byte[] body, Map<String, List<String>> headers) {
  return Verifier.builder().publicKeys(PUBLIC_KEYS)${javaNames(changed)}.build().verify(headers, body);
}`,
    },
  ];
}

function nodeNames(changed: Facts['changed']): string {
  if (changed.length === 0) return '';
  return `, headerNames: { ${changed.map(([role, name]) => `${role}: '${name}'`).join(', ')} }`;
}

function pythonNames(changed: Facts['changed']): string {
  if (changed.length === 0) return '';
  return `, header_names={${changed.map(([role, name]) => `"${role}": "${name}"`).join(', ')}}`;
}

function goNames(changed: Facts['changed']): string {
  if (changed.length === 0) return '';
  const fields = changed.map(([role, name]) => `${role[0]?.toUpperCase()}${role.slice(1)}: "${name}"`);
  return `, HeaderNames: verify.HeaderNames{${fields.join(', ')}}`;
}

function javaNames(changed: Facts['changed']): string {
  if (changed.length === 0) return '';
  const names = new Map(changed);
  const values = (Object.keys(defaultNames) as Role[]).map((role) =>
    names.has(role) ? `"${names.get(role)}"` : 'null',
  );
  return `.headerNames(new HeaderNames(${values.join(', ')}))`;
}
