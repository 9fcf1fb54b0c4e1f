/** Prints who may call each operation of the API into docs/management.md. The operations declare it. */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { accountsPart } from '../src/api/accounts/accounts.ts';
import { adminPart } from '../src/api/admin/admin.ts';
import { appsPart } from '../src/api/apps/apps.ts';
import { eventsPart } from '../src/api/events/events.ts';
import { webhooksPart } from '../src/api/webhooks/webhooks.ts';
import type { Audience, Operation } from '../src/http/operation.ts';

const audiences: Readonly<Record<Audience, string>> = {
  anyone: 'anyone',
  token: 'any token',
  member: 'app developers, for their apps',
  machine: 'machine clients of the operator',
  administrator: 'administrators',
};

/** The table in Markdown, with one row for all methods of a path that the same callers may use. */
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

if (import.meta.main) {
  const path = join(import.meta.dirname, '..', 'docs', 'management.md');
  const text = readFileSync(path, 'utf8');
  const start = text.indexOf('| methods | path | who | scopes |');
  const end = text.indexOf('\n\n', start) + 1;
  writeFileSync(path, text.slice(0, start) + admissionTable() + text.slice(end));
}
