/** The bundled entry: its size, and a run with nothing but Web Crypto and the texts and bytes of the web. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { createContext, runInContext } from 'node:vm';
import { gzipSync } from 'node:zlib';
import { bundleVerify } from '../support/programs/verify_bundle.ts';

const code = await bundleVerify();
const vectors = readFileSync(new URL('../vectors/signatures.json', import.meta.url), 'utf8');

test('the entry is less than 5 KiB compressed', (t) => {
  const bytes = gzipSync(code, { level: 9 }).length;
  t.diagnostic(`${bytes} bytes`);
  assert.ok(bytes < 5_120, `${bytes} bytes`);
});

test('the entry imports no module and names nothing of Node', () => {
  for (const word of [/\bimport\b/, /\brequire\b/, /\bprocess\b/, /\bBuffer\b/, /node:/])
    assert.doesNotMatch(code.replaceAll(/`[^`]*`|"[^"]*"/g, '""'), word);
});

test('every vector has its outcome where there is only Web Crypto', async () => {
  const context = createContext({ crypto, TextEncoder, TextDecoder, atob, btoa });
  runInContext(`${code}; globalThis.nuncio = nuncio;`, context);
  const outcomes = (await runInContext(
    `(async () => {
      const outcomes = [];
      const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
      const fail = () => Promise.reject(new Error('no keys'));
      for (const { secrets, public_keys, keys_fail, header_names, tolerance, body_base64, ...each } of JSON.parse(${JSON.stringify(vectors)}).cases) {
        const body = body_base64 ? bytesOf(body_base64) : each.body;
        const publicKeys = keys_fail ? fail : public_keys;
        const options = { ...each, body, secrets, publicKeys, headerNames: header_names, tolerance: tolerance ?? 1e12 };
        const outcome = await nuncio.verify(options).catch((error) => error.code ?? String(error));
        outcomes.push([each.name, JSON.stringify(outcome), JSON.stringify(each.delivery ?? each.error)]);
      }
      const handle = nuncio.once(nuncio.memoryStore());
      const twice = [await handle({ id: 'a' }, () => {}), await handle({ id: 'a' }, () => {})];
      outcomes.push(['once', twice.join(), 'true,false']);
      return outcomes;
    })()`,
    context,
  )) as [string, string, string][];
  assert.ok(outcomes.length > 100);
  for (const [name, outcome, expected] of outcomes) assert.equal(outcome, expected, name);
});
