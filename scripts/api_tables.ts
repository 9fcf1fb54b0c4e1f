/** Prints tables into the documents: who may call each operation of the API (docs/management.md), and its error codes (docs/api.md). */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { accountsPart } from '../src/api/accounts/accounts.ts';
import { adminPart } from '../src/api/admin/admin.ts';
import { appsPart } from '../src/api/apps/apps.ts';
import { eventsPart } from '../src/api/events/events.ts';
import { webhooksPart } from '../src/api/webhooks/webhooks.ts';
import type { Audience, Operation } from '../src/http/operation.ts';
import { problemCodes } from '../src/http/problem_codes.ts';

const audiences: Readonly<Record<Audience, string>> = {
  anyone: 'anyone',
  token: 'any token',
  member: 'app developers, for their apps',
  machine: 'machine clients of the operator',
  administrator: 'administrators',
};

/** Who may call what, in Markdown, with one row for all methods of a path that the same callers may use. */
export function admissionTable(): string {
  const parts = [appsPart, webhooksPart([]), eventsPart([]), accountsPart, adminPart];
  const rows = new Map<string, string[]>();
  for (const { method, path, admission } of parts.flatMap((part) => part.operations)) {
    const key = `\`${path.replaceAll(/\{(\w+)\}/g, '<$1>')}\` | ${describe(admission)}`;
    rows.set(key, [...(rows.get(key) ?? []), method.toUpperCase()]);
  }
  const lines = [...rows].map(([key, methods]) => `| ${methods.join(', ')} | ${key} |`);
  return ['| methods | path | who | scopes |', '|---|---|---|---|', ...lines, ''].join('\n');
}

function describe({ audience, scopes }: Operation['admission']): string {
  return `${audiences[audience]} | ${scopes.map((scope) => `\`${scope}\``).join(', ')}`;
}

/** The codes of errors, in Markdown. */
export function errorTable(): string {
  const lines = Object.entries(problemCodes).map(
    ([code, { statuses, meaning }]) => `| \`${code}\` | ${statuses.join(', ')} | ${meaning} |`,
  );
  return ['| code | status | when |', '|---|---|---|', ...lines, ''].join('\n');
}

/** Replaces the table that begins with the same line. */
function writeTable(document: string, table: string): void {
  const path = join(import.meta.dirname, '..', 'docs', document);
  const text = readFileSync(path, 'utf8');
  const start = text.indexOf(table.slice(0, table.indexOf('\n') + 1));
  const end = text.indexOf('\n\n', start) + 1;
  writeFileSync(path, text.slice(0, start) + table + text.slice(end));
}

if (import.meta.main) {
  writeTable('management.md', admissionTable());
  writeTable('api.md', errorTable());
}
