/** The documents refer to each other correctly, and all of them are on the site. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join, normalize } from 'node:path';
import { test } from 'node:test';
import { anchorsOf, convertPages, linksOf } from '../../site/documents.ts';
import { pages } from '../../site/pages.ts';

const documents = [...new Set([...pages.map(({ file }) => file), 'AGENTS.md'])];
const converted = convertPages();

test('each document of docs is a page of the site, once', async () => {
  // The site is what an assistant gets to solve the tasks of docs/evaluation. It does not contain them.
  const found = await Array.fromAsync(glob('docs/**/*.md', { exclude: ['docs/evaluation/**'] }));
  const listed = pages.map(({ file }) => file).filter((file) => file.startsWith('docs/'));
  assert.deepEqual(listed.toSorted(), found.toSorted());
  assert.equal(new Set(pages.map(({ route }) => route)).size, pages.length);
});

test('each page has a title and a description of its own', () => {
  const titles = converted.map(({ title }) => title);
  assert.deepEqual(
    titles.filter((title) => title === ''),
    [],
  );
  const descriptions = pages.map(({ description }) => description);
  assert.equal(new Set(descriptions).size, descriptions.length);
  for (const description of descriptions) assert.match(description, /^[A-Z].{20,180}\.$/);
});

test('links of documents lead to files and headings that exist', () => {
  const wrong = converted.flatMap(({ file, dead }) => dead.map((target) => `${file}: ${target}`));
  for (const file of documents) {
    for (const target of linksOf(readFileSync(file, 'utf8'))) {
      const [path = '', anchor] = target.split('#');
      if (anchor === undefined || /^[a-z]+:/.test(target)) continue;
      const goal = path === '' ? file : normalize(join(dirname(file), path));
      if (!goal.endsWith('.md') || goal.startsWith('..')) continue;
      if (!anchorsOf(readFileSync(goal, 'utf8')).has(anchor)) wrong.push(`${file}: ${target}`);
    }
  }
  assert.deepEqual(wrong, []);
});

test('pages of the site refer to no file of the repository', () => {
  const wrong = converted.flatMap(({ file, text, markdown }) =>
    [...linksOf(text), ...linksOf(markdown)]
      .filter((target) => !/^(?:#|\/|https?:|mailto:)/.test(target))
      .map((target) => `${file}: ${target}`),
  );
  assert.deepEqual(wrong, []);
});

test('a diagram carries no style of its own on the site, and a description', () => {
  const diagrams = converted.flatMap(({ text }) => [
    ...text.matchAll(/<div class="diagram"[\s\S]*?<\/div>/g),
  ]);
  assert.ok(diagrams.length >= 6);
  for (const [diagram] of diagrams) {
    assert.doesNotMatch(diagram, /<style|style=|\n\s*\n/);
    assert.match(diagram, /aria-label="[^"]{30,}"/);
  }
});
