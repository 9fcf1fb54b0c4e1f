/** A delivery as a curl command. The log has no signatures, so the command is signed here, with the subscription's secret. */

import type { Attempt } from '../../api/generated.ts';

type Headers = Record<string, string>;

/** Stands for what the log does not have: signatures, and values of static headers. */
const masked = '***';

/** @param headers those of the attempt, or of `signAfresh` */
export function curlOf({ request }: Attempt, headers: Headers, body: string): string {
  if (request === null) return '';
  const shown = Object.entries(headers)
    .filter(([name]) => !/^(?:host|content-length|accept-encoding)$/i.test(name))
    .map(([name, value]) => `  -H ${quote(`${name}: ${value}`)}`);
  return [`curl -i --globoff ${quote(request.url)}`, ...shown, `  --data-raw ${quote(body)}`].join(' \\\n');
}

/** Quotes a string for a POSIX shell. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Names of static headers, whose values are masked. */
export function maskedHeaders(headers: Headers): string[] {
  return Object.entries(headers).flatMap(([name, value]) => (value === masked ? [name] : []));
}

/** Whether the subscription's secret can sign the request. The server's own key cannot: it stays on the server. */
export function isSignedBySecret(headers: Headers): boolean {
  return Object.values(headers).some((value) => shapeOf(value) !== null);
}

type Shape = 'timestamp' | 'sha256' | 'standard';

/** The form of a masked signature. */
function shapeOf(value: string): Shape | null {
  if (/^t=\d+,v1=\*{3}$/.test(value)) return 'timestamp';
  if (value === `sha256=${masked}`) return 'sha256';
  return value === `v1,${masked}` ? 'standard' : null;
}

/** Replaces the masked signature by one that was made now. */
export async function signAfresh(headers: Headers, body: string, secret: string): Promise<Headers> {
  const now = String(Math.floor(Date.now() / 1_000));
  const signed = { ...headers };
  for (const [name, value] of Object.entries(headers)) {
    const shape = shapeOf(value);
    if (shape === 'timestamp') signed[name] = `t=${now},v1=${toHex(await hmac(secret, `${now}.${body}`))}`;
    if (shape === 'sha256') signed[name] = `sha256=${toHex(await hmac(secret, body))}`;
    if (shape === 'standard') {
      const key = Uint8Array.from(atob(secret.replace(/^whsec_/, '')), (letter) => letter.charCodeAt(0));
      const digest = await hmac(key, `${headers['webhook-id']}.${now}.${body}`);
      signed['webhook-timestamp'] = now;
      signed[name] = `v1,${btoa(String.fromCharCode(...digest))}`;
    }
  }
  return signed;
}

async function hmac(secret: string | Uint8Array<ArrayBuffer>, text: string): Promise<Uint8Array> {
  const encoder = new TextEncoder();
  const bytes = typeof secret === 'string' ? encoder.encode(secret) : secret;
  const key = await crypto.subtle.importKey('raw', bytes, { name: 'HMAC', hash: 'SHA-256' }, false, ['sign']);
  return new Uint8Array(await crypto.subtle.sign('HMAC', key, encoder.encode(text)));
}

function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
