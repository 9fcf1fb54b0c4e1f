/** Test files, by the names that people and documents use. */

import { existsSync, readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Tier } from './tier.ts';

export const testFolder = fileURLToPath(new URL('../../', import.meta.url));

/** Returns the path of a test file below `test/`, as documents name it. */
export function testFileName(path: string): string {
  return relative(testFolder, resolve(path));
}

/**
 * Returns the test files that the names refer to, or all test files without names. A name is a room
 * (`webhooks/lanes`), a test in it (`webhooks/lanes/hosts`) or a path (`test/…`, `bench/month.ts`).
 */
export async function findTestFiles(names: readonly string[]): Promise<string[]> {
  const paths = names.length === 0 ? ['test'] : names.map(pathOf);
  return (await Promise.all(paths.map(filesAt))).flat();
}

function pathOf(name: string): string {
  const path = /^(test|bench)(\/|$)/.test(name) ? name : join('test', name);
  return existsSync(`${path}.test.ts`) && !existsSync(path) ? `${path}.test.ts` : path;
}

async function filesAt(path: string): Promise<string[]> {
  const pattern = path.endsWith('.ts') ? path : join(path, '**/*.test.ts');
  const found = await Array.fromAsync(glob(pattern));
  if (found.length === 0) throw new Error(`There are no tests at ${path}.`);
  return found.sort();
}

/** Modules that a test imports if it starts PostgreSQL, a server or a browser. */
const serverModules = [
  'browser/chromium',
  'database/database',
  'database/embedded_process',
  'runner/test_postgres',
  'servers/process',
  'servers/server',
].map((name) => `test/support/${name}.ts`);
/** Test files that run other programs or wait for seconds. */
const slowFiles = ['webhooks/sending/', 'commands/', 'interoperability/', 'examples/', 'whole/'];

/** Whether a test file, or a test module that it imports, needs more than its own process. */
export function needsServer(path: string): boolean {
  return slowFiles.some((start) => testFileName(path).startsWith(start)) || reaches(serverModules, path);
}

/** Whether a test file opens the console in a browser. */
export function usesConsole(path: string): boolean {
  return reaches(['test/support/console/console_page.ts'], path);
}

/** Whether a file is one of the modules, or imports one through other test modules. */
function reaches(modules: readonly string[], path: string, seen = new Set<string>()): boolean {
  if (modules.includes(path)) return true;
  if (seen.has(path)) return false;
  seen.add(path);
  const imports = readFileSync(path, 'utf8').matchAll(/(?:\bfrom|\bimport\()\s*'(\.{1,2}\/[^'$]+)'/g);
  return [...imports]
    .map(([, specifier = '']) => join(dirname(path), specifier))
    .filter((imported) => imported.startsWith('test/'))
    .some((imported) => reaches(modules, imported, seen));
}

/**
 * Files that `npm test` leaves out: examples in a browser, generated programs and those in other languages, other users of the system, installed packages, long runs and
 * large data.
 */
const laterFiles: readonly string[] = [
  'console/library_samples.test.ts',
  'console/samples.test.ts',
  'console/scale.test.ts',
  'database/embedded/identity.test.ts',
  'docs/site.test.ts',
  'examples/demo_browser.test.ts',
  'examples/evaluation.test.ts',
  'examples/existing_app.test.ts',
  'examples/subscribers.test.ts',
  'interoperability/apache.test.ts',
  'interoperability/clients.test.ts',
  'interoperability/mcp_conformance.test.ts',
  'interoperability/mcp_python.test.ts',
  'interoperability/nginx.test.ts',
  'interoperability/publishing.test.ts',
  'interoperability/schemathesis.test.ts',
  'interoperability/spring.test.ts',
  'interoperability/subscriber_libraries.test.ts',
  'verify/subscribers_page_languages.test.ts',
  'whole/create.test.ts',
  'whole/deployment.test.ts',
  'whole/image.test.ts',
  'whole/installed.test.ts',
  'whole/monitoring.test.ts',
  'whole/nodes_soak.test.ts',
  'whole/package.test.ts',
  'whole/production.test.ts',
  'whole/soak.test.ts',
  'whole/tracing.test.ts',
  'whole/upgrade.test.ts',
  'web/reference/generated_client.test.ts',
  'webhooks/engine/memory.test.ts',
];

/** Whether a file belongs to a tier. A file with variants of a test belongs to both: each runs its own variants. */
export function isInTier(path: string, tier: Tier): boolean {
  const isLater = laterFiles.includes(testFileName(path));
  if (tier === 'first') return !isLater;
  return tier === 'all' || isLater || reaches(['test/support/runner/tier.ts'], path);
}

/** The slowest test files, the slowest first. They start first, so that none of them runs alone at the end. */
const longFiles: readonly string[] = [
  'console/accessibility.test.ts',
  'interoperability/schemathesis.test.ts',
  'commands/cli.test.ts',
  'console/operator.test.ts',
  'database/embedded/embedded.test.ts',
  'console/apps.test.ts',
  'webhooks/engine/thread.test.ts',
  'console/subscriptions.test.ts',
  'console/deliveries.test.ts',
  'web/reference/reference.test.ts',
  'whole/nodes_soak.test.ts',
  'whole/soak.test.ts',
  'whole/tracing.test.ts',
  'whole/upgrade.test.ts',
  'webhooks/lanes/failover.test.ts',
  'webhooks/lanes/dead_nodes.test.ts',
  'webhooks/lanes/nodes.test.ts',
  'webhooks/lanes/lanes.test.ts',
  'webhooks/lanes/crash.test.ts',
  'webhooks/engine/engine.test.ts',
  'webhooks/engine/memory.test.ts',
  'webhooks/fan_out/fairness.test.ts',
  'webhooks/fan_out/parked_events.test.ts',
  'database/schema.test.ts',
  'accounts/throttle.test.ts',
  'oauth/rate_limit.test.ts',
];

export function longestFirst(paths: readonly string[]): string[] {
  const isLong = (path: string) => longFiles.includes(testFileName(path));
  const rankOf = (path: string) => longFiles.indexOf(testFileName(path));
  const long = paths.filter(isLong).sort((one, other) => rankOf(one) - rankOf(other));
  return [...long, ...paths.filter((path) => !isLong(path))];
}
