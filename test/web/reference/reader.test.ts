/** What the reference page generates from the document: samples, samples in other languages, escaping. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, test } from 'node:test';
import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import { html } from '../../../src/http/html.ts';
import { requestSamples } from '../../../src/web/reference/reader/code.ts';
import {
  type ApiDocument,
  operationsByTag,
  type Schema,
} from '../../../src/web/reference/reader/document.ts';
import { readerPage } from '../../../src/web/reference/reader/reader_page.ts';
import { sampleOf } from '../../../src/web/reference/reader/sample.ts';
import { schemaFields, typeOf } from '../../../src/web/reference/reader/schema_fields.ts';
import { startTestServer } from '../../support/servers/server.ts';

const server = await startTestServer({ after });
const document = (await (await fetch(`${server.baseUrl}/openapi.json`)).json()) as ApiDocument;

test('a sample satisfies its schema', () => {
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  // The package's default export is typed as CommonJS, but is the function at run time.
  (formats as unknown as (instance: Ajv2020) => void)(ajv);
  ajv.addSchema({ $id: 'api', ...document });
  const names = Object.keys(document.components.schemas);
  assert.ok(names.length > 20);
  // No sample can be generated from a pattern.
  const isFreeOfPatterns = (name: string) =>
    !JSON.stringify(document.components.schemas[name]).includes('"pattern"');
  for (const name of names.filter(isFreeOfPatterns)) {
    const reference = `#/components/schemas/${name}`;
    const sample = sampleOf(document, { $ref: reference });
    const isValid = ajv.validate({ $ref: `api${reference}` }, sample);
    assert.ok(isValid, `${name}: ${JSON.stringify(sample)} ${ajv.errorsText()}`);
  }
});

test('a recursive schema ends', () => {
  const tree: Schema = { type: 'object', properties: { child: { $ref: '#/components/schemas/Tree' } } };
  const recursive = { ...document, components: { ...document.components, schemas: { Tree: tree } } };
  assert.match(JSON.stringify(sampleOf(recursive, tree)), /^\{"child":\{/);
  assert.match(String(schemaFields(recursive, tree)), /child/);
});

test('types are described in words', () => {
  const nullable: Schema = { anyOf: [{ type: 'integer', minimum: 1 }, { type: 'null' }] };
  assert.equal(typeOf(document, nullable), 'integer or null');
  assert.equal(
    typeOf(document, { type: 'array', items: { type: 'string', format: 'uuid' } }),
    'array of string (UUID)',
  );
  assert.equal(typeOf(document, { enum: ['a', 1] }), '"a" | 1');
});

test('the shell reads a curl sample with quotes in its body as one argument', () => {
  const value = { title: `It's "quoted" $HOME \`date\`` };
  const [[, code] = ['', '']] = requestSamples({
    method: 'post',
    url: 'http://localhost/articles',
    needsToken: false,
    body: { type: 'application/json', value },
  });
  const printed = execFileSync('sh', ['-c', code.replace(/^curl/, `printf '%s\\0'`)], { encoding: 'utf8' });
  const words = printed.split('\0');
  assert.deepEqual(JSON.parse(words[words.indexOf('-d') + 1] ?? ''), value);
});

test('the JavaScript sample is a valid program', () => {
  for (const operation of [...operationsByTag(document).values()].flat()) {
    const [type, media] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
    const body = media && {
      type: String(type),
      value: media.example ?? sampleOf(document, media.schema),
    };
    const samples = requestSamples({
      method: operation.method,
      url: `http://localhost${operation.path}`,
      needsToken: true,
      ...(body === undefined ? {} : { body }),
    });
    const code = samples.find(([language]) => language === 'JavaScript')?.[1] ?? '';
    new Function('token', `return async () => { ${code} return response; }`);
  }
});

test('markup in the document is shown as text', () => {
  const hostile = '<script>alert(1)</script>"\'';
  const page = readerPage({
    head: html``,
    document: {
      ...document,
      info: { title: hostile, version: hostile },
      tags: [{ name: 'articles', description: hostile }],
      webhooks: {
        [hostile]: {
          post: {
            operationId: 'x',
            summary: hostile,
            responses: {},
            requestBody: {
              content: {
                'application/json': {
                  schema: { type: 'object', properties: { [hostile]: { const: hostile } } },
                  example: { [hostile]: hostile },
                },
              },
            },
          },
        },
      },
    },
    signIn: { clientId: 'nuncio-docs', redirectUri: 'http://localhost/docs/oauth2-redirect.html' },
  });
  assert.equal(page.match(/<script/g)?.length, 1);
  assert.ok(page.includes('&lt;script&gt;'));
});
