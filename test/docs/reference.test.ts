/** The reference in the documents says what the sources say. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { readSettings } from '../../scripts/reference/doc_comments.ts';
import { declaredSettings } from '../../scripts/reference/settings.ts';
import { generatedDocuments } from '../../scripts/reference.ts';
import { defaultAppSettings } from '../../src/apps/settings.ts';
import { readEnvironment } from '../../src/config/environment.ts';
import { defaultOAuthSettings } from '../../src/oauth/settings.ts';
import { defaultQuotas } from '../../src/webhooks/subscriptions/quotas.ts';

for (const [path, text] of await generatedDocuments()) {
  test(`${path} is up to date`, () => {
    assert.equal(readFileSync(path, 'utf8'), text, 'run npx node scripts/reference.ts');
  });
}

test('every environment variable is described, and no other', () => {
  const described = declaredSettings('variables').flatMap(({ names }) => names);
  assert.ok(described.length > 20);
  const all = Object.fromEntries(described.map((name) => [name, 'value']));
  assert.deepEqual(Object.keys(readEnvironment({ ...all, OTHER: 'value' })), described);
});

const defaults = { oauth: defaultOAuthSettings, apps: defaultAppSettings, quotas: defaultQuotas };
for (const [section, values] of Object.entries(defaults)) {
  test(`the defaults of ${section} are those of the code`, () => {
    const described = declaredSettings(section).map(({ names, default: value }) => [names, value]);
    const shown = (value: unknown) =>
      typeof value === 'number'
        ? value.toLocaleString('en-US')
        : `\`${JSON.stringify(value).replaceAll('"', "'")}\``;
    const expected = Object.entries(values).map(([name, value]) => [[name], shown(value)]);
    assert.deepEqual(described.toSorted(), expected.toSorted());
  });
}

test('docs/platform.md names every property of collections and event kinds', () => {
  const page = readFileSync('docs/platform.md', 'utf8');
  const collections = 'src/collections/declaration.ts';
  const properties = [
    ...readSettings(collections, 'interface Common<F extends Fields> {'),
    ...readSettings(collections, 'export interface CollectionDeclaration<'),
    ...readSettings(collections, 'export interface ChildDeclaration<'),
    ...readSettings('src/events/kind.ts', 'export interface EventKind {'),
    ...readSettings('src/events/kind.ts', 'export interface EarlierVersion {'),
    ...readSettings('src/platform.ts', 'export interface PlatformDeclaration {'),
  ].flatMap(({ names }) => names);
  assert.ok(properties.length > 30);
  const missing = properties.filter((name) => !new RegExp(`[\`{ ]${name}[\`:, ]`).test(page));
  assert.deepEqual(missing, []);
});
