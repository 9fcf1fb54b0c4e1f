/**
 * The environment: the only module that reads `process.env`.
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
  'NUNCIO_CONCURRENT_REQUESTS',
  'NUNCIO_CLIENT_CONNECTIONS',
  'NUNCIO_NODE_NAME',
  'NUNCIO_TRUST_PROXY',
  'NUNCIO_EGRESS_PROXY',
  'NUNCIO_SMTP_URL',
  'NUNCIO_MAIL_FROM',
  'NUNCIO_METRICS_PORT',
  'NUNCIO_METRICS_TOKEN',
  'NUNCIO_TLS_CERT_FILE',
  'NUNCIO_TLS_KEY_FILE',
  'NUNCIO_TLS_CLIENT_CA_FILE',
  'NUNCIO_CLIENT_CERT_FILE',
  'NUNCIO_CLIENT_KEY_FILE',
  'NUNCIO_CONFIG',
  'LOG_LEVEL',
] as const;

/** The environment variables that Nuncio reads. Empty values are treated as absent. */
export type Environment = { readonly [name in (typeof names)[number]]?: string };

/** Prefix of Nuncio's own variables. */
const prefix = 'NUNCIO_';

/** Variables that Kubernetes sets in every container for services named nuncio or nuncio-something. */
const serviceVariable =
  /^NUNCIO_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)$/;
const serviceAddress = /^(?:tcp|udp|sctp):\/\//;

/** The environment of this process, with the variables of other programs. */
export function environmentOfProcess(): Readonly<Record<string, string | undefined>> {
  return process.env;
}

/** Reads Nuncio's variables. */
export function readEnvironment(variables: Readonly<Record<string, string | undefined>>): Environment {
  const environment: Record<string, string> = {};
  for (const name of names) {
    const value = variables[name];
    if (value !== undefined && value.trim() !== '') environment[name] = value.trim();
  }
  return environment;
}

/** Reads one variable that the operator names in `nuncio.config.ts`; an empty value counts as absent. */
export function readVariable(name: string): string | undefined {
  const value = process.env[name]?.trim();
  return value === '' ? undefined : value;
}

/**
 * Finds unknown variables with Nuncio's prefix. Without this check a mistyped setting would be ignored silently.
 * @returns one line for each
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
      return `${name} is not a setting${near === undefined ? ': see docs/settings.md' : `: did you mean ${near}?`}`;
    });
}

/**
 * Enables Node's compile cache for this process and its threads. A server that runs from TypeScript sources then starts with
 * about half the processor time and less memory, because types are already stripped. The cache is stored in node_modules:
 * in a directory that others can write, another program could replace it. If it is not writable, nothing is cached. The
 * published package is JavaScript and does not need it.
 */
export function enableSourceCache(): void {
  if (!import.meta.filename.endsWith('.ts')) return;
  const directory = fileURLToPath(new URL('../../node_modules/.cache/compiled', import.meta.url));
  // Threads read this variable.
  process.env.NODE_COMPILE_CACHE ??= directory;
  enableCompileCache(process.env.NODE_COMPILE_CACHE);
}
