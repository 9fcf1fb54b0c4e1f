/**
 * Writes what documents say about the sources: the pages of `docs/reference`, and the tables between `<!-- generated: name -->` and
 * `<!-- end -->` in other documents. Run it after a change of a route, command, metric, setting, event kind or error code.
 */

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { problemCodes } from '../src/http/problem_codes.ts';
import { commandsPage } from './reference/commands.ts';
import { eventsPage } from './reference/events.ts';
import { httpPage } from './reference/http.ts';
import { code, root, table } from './reference/markdown.ts';
import { metricsPage } from './reference/metrics.ts';
import { type GeneratedTable, settingTables } from './reference/settings.ts';

/** Returns the documents with generated parts as they should be, by their path from the root of the repository. */
export async function generatedDocuments(): Promise<Map<string, string>> {
  const documents = new Map([
    ['docs/reference/commands.md', await commandsPage()],
    ['docs/reference/events.md', await eventsPage()],
    ['docs/reference/http.md', httpPage()],
    ['docs/reference/metrics.md', metricsPage()],
  ]);
  for (const { document, name, text } of [...settingTables(), codeTable()]) {
    const path = `docs/${document}`;
    const before = documents.get(path) ?? readFileSync(join(root, path), 'utf8');
    documents.set(path, replacePart(before, name, text, path));
  }
  return documents;
}

function codeTable(): GeneratedTable {
  const rows = Object.entries(problemCodes).map(([name, { statuses, meaning }]) => [
    code(name),
    statuses.join(', '),
    meaning,
  ]);
  return { document: 'api.md', name: 'codes', text: table(['code', 'status', 'when'], rows) };
}

function replacePart(text: string, name: string, part: string, path: string): string {
  const begin = `<!-- generated: ${name} -->\n`;
  const start = text.indexOf(begin) + begin.length;
  const end = text.indexOf('<!-- end -->', start);
  if (start < begin.length || end < 0) throw new Error(`${path} has no place for ${name}`);
  return `${text.slice(0, start)}\n${part}\n\n${text.slice(end)}`;
}

if (import.meta.main) {
  for (const [path, text] of await generatedDocuments()) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  }
}
