/** A client that another program generates from the OpenAPI document. */

import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { createApiUser, requester } from '../../support/clients/api_client.ts';
import { prepareNodePackage } from '../../support/programs/node_package.ts';
import { testPlatform, testScopes } from '../../support/servers/platform.ts';
import { startTestServer } from '../../support/servers/server.ts';

const server = await startTestServer({ after }, {}, 'dev', testPlatform);
const { body: document } = await requester(server)('GET', '/openapi.json');

test('a TypeScript client generated from the document compiles and works', async (t) => {
  const generator = await prepareNodePackage('swagger-typescript-api', '13.13.0');
  if ('missing' in generator) return t.skip(generator.missing);
  const { generateApi } = createRequire(import.meta.url)(generator.folder) as GeneratorModule;
  const directory = await mkdtemp(join(tmpdir(), 'nuncio-client-'));
  t.after(() => rm(directory, { recursive: true, force: true }));
  const { files } = await generateApi({
    spec: structuredClone(document),
    silent: true,
    generateClient: true,
    httpClientType: 'fetch',
  });
  // Node strips types but does not transform the generated enums and parameter properties.
  const source = files.map((file) => file.fileContent).join('\n');
  await writeFile(join(directory, 'client.ts'), source);
  await writeFile(join(directory, 'package.json'), '{ "type": "module" }');
  await writeFile(join(directory, 'use.ts'), useOfClient);
  await writeFile(join(directory, 'tsconfig.json'), JSON.stringify(clientTsconfig));
  const { execFile } = await import('node:child_process');
  const run = (command: string, parameters: string[]) =>
    new Promise<string>((resolve, reject) => {
      execFile(command, parameters, { cwd: directory }, (error, stdout, stderr) => {
        if (error === null) resolve(stdout);
        else reject(new Error(`${stdout}\n${stderr}`));
      });
    });
  const tsc = join(dirnameOf('typescript/package.json'), 'bin/tsc');
  await run(process.execPath, [tsc, '-p', 'tsconfig.json']);
  const user = await createApiUser(server, testScopes);
  const output = await run(process.execPath, ['out/use.js', server.baseUrl, user.accessToken]);
  assert.equal(output.trim(), 'made draft, published published, refused 409, listed 1, embedded Well said.');
});

/** The part of swagger-typescript-api that the test uses. */
interface GeneratorModule {
  generateApi: (options: object) => Promise<{ files: { fileContent: string }[] }>;
}

const useOfClient = `
declare const process: { argv: string[] };
import { Api } from "./client.js";
const [baseUrl, token] = process.argv.slice(2) as [string, string];
const api = new Api({ baseUrl, baseApiParams: { headers: { authorization: \`Bearer \${token}\` } } });
const made = await api.articles.createArticles({ title: 'From a generated client' });
const published = await api.articles.publishArticles(made.data.id);
const refused = await api.articles.publishArticles(made.data.id).catch((answer: { status: number }) => answer);
const listed = await api.articles.listArticles({ limit: 1, state: 'published' });
const items: { id: string }[] = listed.data.items;
await api.articles.createArticleComments(made.data.id, { body: 'Well said.' });
const expanded = await api.articles.readArticles(made.data.id, { expand: 'comments' });
const comment = expanded.data._embedded?.comments?.items[0]?.body;
console.log(\`made \${made.data.state}, published \${published.data.state}, refused \${refused.status}, listed \${items.length}, embedded \${comment}\`);
`;

const clientTsconfig = {
  compilerOptions: {
    target: 'esnext',
    module: 'nodenext',
    strict: true,
    outDir: 'out',
    rootDir: '.',
    lib: ['esnext', 'dom', 'dom.iterable'],
    types: [],
    skipLibCheck: true,
  },
  files: ['client.ts', 'use.ts'],
};

function dirnameOf(specifier: string): string {
  return join(createRequire(import.meta.url).resolve(specifier), '..');
}
