/**
 * The environment: the one place that reads `process.env`. Everything else is handed what it needs.
 */

import { enableCompileCache } from 'node:module';
import { fileURLToPath } from 'node:url';
import { nearestName } from './nearest.ts';

const names = [
  'NUNCIO_BASE_URL',
  'PORT',
  'HOST',
  'DATABASE_URL',
  'NUNCIO_DATABASE_SCHEMA',
  'NUNCIO_DATABASE_CONNECTIONS',
  'NUNCIO_DATA_DIR',
  'NUNCIO_SECRET',
  'NUNCIO_INSECURE_HTTP',
  'NUNCIO_INSECURE_SUBSCRIBERS',
  'NUNCIO_RETRY_SCHEDULE',
  'NUNCIO_RATE_LIMIT',
  'NUNCIO_NODE_NAME',
  'NUNCIO_TRUST_PROXY',
  'NUNCIO_EGRESS_PROXY',
  'NUNCIO_TLS_CERT_FILE',
  'NUNCIO_TLS_KEY_FILE',
  'NUNCIO_TLS_CLIENT_CA_FILE',
  'NUNCIO_CONFIG',
  'LOG_LEVEL',
] as const;

/** The variables that Nuncio reads. An empty value counts as absent. */
export type Environment = { readonly [name in (typeof names)[number]]?: string };

/** The beginning of every name that is ours alone. */
const prefix = 'NUNCIO_';

/** What Kubernetes tells every container of a service that is called nuncio, or nuncio-something: nobody set it. */
const serviceVariable =
  /^NUNCIO_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)$/;
const serviceAddress = /^(?:tcp|udp|sctp):\/\//;

/** Reads the process's environment once. */
export function readEnvironment(): Environment {
  const environment: Record<string, string> = {};
  for (const name of names) {
    const value = process.env[name];
    if (value !== undefined && value.trim() !== '') environment[name] = value.trim();
  }
  return environment;
}

/**
 * Settings that there are not: a mistyped one would otherwise be as if it had not been set.
 * @param environment the process's
 * @returns a line for each
 */
export function unknownSettings(environment: Readonly<Record<string, string | undefined>>): string[] {
  const known = new Set<string>(names);
  return Object.entries(environment)
    .filter(([name, value = '']) => {
      if (!name.startsWith(prefix) || known.has(name)) return false;
      return !serviceVariable.test(name) && !serviceAddress.test(value);
    })
    .map(([name]) => {
      const near = nearestName(name, names) ?? nearestName(name.slice(prefix.length), names);
      return `${name} is not a setting${near === undefined ? ': see docs/settings.md' : `: ${near} may be meant`}`;
    });
}

/** Of this process. */
export function unknownSettingsHere(): string[] {
  return unknownSettings(process.env);
}

/**
 * Keeps the compiled form of the sources for the next start, in this process and its threads. A server that runs from its
 * sources then loads with about half the processor time, because the types are already stripped, and takes less memory. The directory is
 * beside the packages: another program could be put into one that others may write to. Where it cannot be written
 * nothing is kept. What npm publishes is JavaScript, and gains nothing.
 */
export function keepCompiled(): void {
  if (!import.meta.filename.endsWith('.ts')) return;
  const directory = fileURLToPath(new URL('../../node_modules/.cache/compiled', import.meta.url));
  // Threads read the variable.
  process.env.NODE_COMPILE_CACHE ??= directory;
  enableCompileCache(process.env.NODE_COMPILE_CACHE);
}
