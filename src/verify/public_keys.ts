/**
 * Signatures by the deployment's key: `ed25519`. `/meta` shows the public keys, also some that do not sign yet or any more.
 * Keys from a URL or a function are kept for five minutes, and loaded again when none of them matches, at most once in 30
 * seconds.
 *
 *   none → loading → kept → loading (old, or none matches) → kept
 */

import { type Bytes, fromBase64 } from './bytes.ts';
import { VerificationError } from './error.ts';
import { isSigned, type Signature } from './signature.ts';

/** Public keys as `/meta` shows them: the whole document, its `public_keys`, or one key (`whpk_…`). */
export type PublicKeyList =
  | string
  | readonly (string | { readonly key: string; readonly kid?: string })[]
  | { readonly public_keys: readonly { readonly key: string; readonly kid?: string }[] };

/** Keys, the URL of `/meta`, or a function that loads keys. */
export type PublicKeys =
  | PublicKeyList
  | { readonly href: string }
  | (() => PublicKeyList | Promise<PublicKeyList>);

/** Keys that were loaded longer ago are loaded again. */
const freshMs = 300_000;
/** The least time between the starts of two loads. */
const pauseMs = 30_000;
/** Keys that were loaded longer ago are not used, also if they cannot be loaded again. */
const keptMs = 86_400_000;
const fetchTimeoutMs = 5_000;
const responseBytesMax = 65_536;
/** The most URLs whose keys are kept. */
const urlsMax = 100;

interface KeyLoader {
  /** Keys that are fresh, if they could be loaded. @throws VerificationError if there are none */
  current(): Promise<readonly CryptoKey[]>;
  /** Keys that are loaded now, unless the last load was just before. @throws VerificationError if there are none */
  renewed(): Promise<readonly CryptoKey[]>;
}

const byUrl = new Map<string, KeyLoader>();
const byFunction = new WeakMap<object, KeyLoader>();

/** @throws VerificationError if none of the keys has signed the body */
export async function checkPublicKeys(signature: Signature, body: Bytes, source: unknown): Promise<void> {
  if (source === undefined || source === null) {
    throw new VerificationError(
      'no-public-keys',
      'A delivery signed with ed25519 needs publicKeys: those of /meta.',
    );
  }
  const loader = loaderOf(source);
  const keys = await (loader?.current() ?? parseKeys(source));
  if (await isSigned(signature, body, 'Ed25519', keys)) return;
  const renewed = (await loader?.renewed()) ?? keys;
  if (renewed !== keys && (await isSigned(signature, body, 'Ed25519', renewed))) return;
  throw new VerificationError(
    'unknown-key',
    'No public key matches: it is of another server, or the body was changed on its way.',
  );
}

/** Returns undefined if the source has the keys themselves. */
function loaderOf(source: unknown): KeyLoader | undefined {
  if (typeof source === 'function') {
    const known = byFunction.get(source) ?? createKeyLoader(source as () => unknown);
    byFunction.set(source, known);
    return known;
  }
  const url = typeof source === 'string' ? source : (source as { href?: unknown }).href;
  if (typeof url !== 'string' || !/^https?:/.test(url)) return undefined;
  const known = byUrl.get(url) ?? createKeyLoader(() => fetchJson(url));
  if (byUrl.size >= urlsMax) byUrl.clear();
  byUrl.set(url, known);
  return known;
}

function createKeyLoader(load: () => unknown): KeyLoader {
  let keys: readonly CryptoKey[] | undefined;
  let loadedAt = 0;
  let triedAt = 0;
  let failure: unknown;
  let loading: Promise<void> | undefined;

  async function run(): Promise<void> {
    try {
      keys = await parseKeys(await load());
      loadedAt = Date.now();
    } catch (error) {
      failure = error;
    }
    loading = undefined;
  }

  async function renewed(): Promise<readonly CryptoKey[]> {
    if (loading === undefined && !isWithin(pauseMs, triedAt)) {
      triedAt = Date.now();
      loading = run();
    }
    await loading;
    if (keys !== undefined && isWithin(keptMs, loadedAt)) return keys;
    throw new VerificationError(
      'keys-unavailable',
      `The public keys could not be loaded: ${failure}`,
      failure,
    );
  }

  return {
    renewed,
    current: async () => (keys !== undefined && isWithin(freshMs, loadedAt) ? keys : renewed()),
  };
}

/** Whether a time is less than so many milliseconds away. It may be in the future, after the clock was set back. */
function isWithin(ms: number, time: number): boolean {
  return Math.abs(Date.now() - time) < ms;
}

/** @throws VerificationError if a key is malformed, or there are none */
function parseKeys(source: unknown): Promise<readonly CryptoKey[]> {
  const listed = (source as { public_keys?: unknown }).public_keys ?? source;
  const list = Array.isArray(listed) ? listed : [listed];
  const imported = list.map(async (each: { key?: unknown } | string) => {
    const text = typeof each === 'string' ? each : each?.key;
    const [, encoded] = /^whpk_([A-Za-z0-9+/]{43}=)$/.exec(String(text)) ?? [];
    if (encoded === undefined) {
      throw new VerificationError(
        'malformed-public-key',
        'A public key is whpk_ and the base64 of 32 bytes, as public_keys of /meta has it.',
      );
    }
    return crypto.subtle.importKey('raw', fromBase64(encoded) as Bytes, 'Ed25519', false, ['verify']);
  });
  return Promise.all(imported);
}

async function fetchJson(url: string): Promise<unknown> {
  const { protocol, hostname } = new URL(url);
  if (protocol !== 'https:' && !['localhost', '127.0.0.1', '[::1]'].includes(hostname)) {
    throw new Error('the URL must begin with https://');
  }
  const response = await fetch(url, { redirect: 'manual', signal: AbortSignal.timeout(fetchTimeoutMs) });
  if (response.status !== 200) throw new Error(`status ${response.status}`);
  const chunks: Bytes[] = [];
  let received = 0;
  const reader = response.body?.getReader();
  for (let part = await reader?.read(); part?.done === false; part = await reader?.read()) {
    received += part.value.length;
    if (received > responseBytesMax) {
      void reader?.cancel();
      throw new Error(`more than ${responseBytesMax} bytes`);
    }
    chunks.push(part.value);
  }
  return JSON.parse(await new Blob(chunks).text());
}
