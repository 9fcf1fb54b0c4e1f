/**
 * Converts the environment to one frozen `Config`. All problems are reported together, each in one line with the name of
 * the setting, its value and the accepted values.
 */

import { isIP } from 'node:net';
import { resolve } from 'node:path';
import { defaultSchema, isSchemaName } from '../database/schema.ts';
import { findConfigFile, missingConfigFile } from './config_file.ts';
import { connectionsDefault, connectionsMin } from './connections.ts';
import { databaseUrlError, withoutPassword } from './database_url.ts';
import { parseDurationSeconds } from './duration.ts';
import type { Environment } from './environment.ts';
import { type LoadSettings, readLoadSettings } from './load.ts';
import { type MailSettings, readMailSettings } from './mail.ts';
import { type MetricsSettings, readMetricsSettings } from './metrics.ts';
import { type ClientCertificateFiles, readClientFiles, readTls, type TlsFiles } from './tls_files.ts';

/** How the process was started: `dev` by `npm start`, `start` in production, `command` by other commands. */
export type Mode = 'dev' | 'start' | 'command';

export interface Config extends LoadSettings, MetricsSettings, MailSettings {
  readonly mode: Mode;
  /** The current directory, where relative paths begin. */
  readonly folder: string;
  /** Origin without a trailing slash. Also the issuer. */
  readonly baseUrl: string;
  readonly port: number;
  readonly host: string;
  /** Null: use the embedded PostgreSQL. */
  readonly databaseUrl: string | null;
  /** The PostgreSQL schema for everything of Nuncio. */
  readonly databaseSchema: string;
  /** Maximum database connections of this node. */
  readonly databaseConnections: number;
  /** Absolute path. */
  readonly dataDir: string;
  /** Null: generate a secret and store it in the data directory. */
  readonly secret: string | null;
  readonly insecureSubscribers: boolean;
  /** Pauses between attempts, in seconds. */
  readonly retryScheduleSeconds: readonly number[];
  /** Requests per minute and token; 0 disables the limit. */
  readonly rateLimitPerMinute: number;
  /** Name of this node, unique within the deployment; null if the operator did not set one. */
  readonly nodeName: string | null;
  /** Addresses or CIDR ranges of reverse proxies whose `X-Forwarded-*` headers are trusted. */
  readonly trustProxy: readonly string[];
  /** URL of the proxy for outgoing connections, optionally with credentials; null for none. */
  readonly egressProxy: string | null;
  /** Connections of this node through that proxy at once. */
  readonly egressProxyConnections: number;
  /** Null: the server speaks plain HTTP. */
  readonly tls: TlsFiles | null;
  /** Null: deliveries cannot authenticate with a certificate. */
  readonly clientCertificate: ClientCertificateFiles | null;
  /** Absolute path of `nuncio.config.ts`; null for the shipped example. */
  readonly configFile: string | null;
  readonly logLevel: LogLevel;
  /** Whether a missing database is created. The servers do this, other commands only with `--init`. */
  readonly mayCreateDatabase: boolean;
}

const logLevels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export type LogLevel = (typeof logLevels)[number];

/** Default retry schedule: 11 pauses, about 3 days in total. */
const defaultRetrySchedule = '5s,30s,2m,10m,30m,1h,3h,6h,12h,24h,24h';

/** Minimum length of the secret, in bytes. */
export const secretBytesMin = 32;
/** Maximum number of pauses in a retry schedule, and maximum length of a pause in seconds. */
export const retryStepsMax = 20;
export const retryStepSecondsMax = 7 * 86_400;

/** Invalid settings; `problems` has one line for each. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly problems: readonly string[];

  constructor(problems: readonly string[], options?: ErrorOptions) {
    super(problems.join('\n'), options);
    this.problems = problems;
  }
}

/**
 * @param unknown problems with unknown settings, to be reported together with the others
 * @param folder the current directory
 * @param needsFile whether the platform comes from a file, which `start` requires
 * @throws ConfigError with all problems
 */
export function loadConfig(
  environment: Environment,
  mode: Mode,
  unknown: readonly string[] = [],
  folder = process.cwd(),
  needsFile = true,
): Config {
  const problems: string[] = [...unknown];
  const reportInvalid = (name: keyof Environment, value: string, accepted: string) => {
    problems.push(`${name} is ${JSON.stringify(value)}: it must be ${accepted}`);
  };

  const port = readInteger(environment, 'PORT', 3000, 0, 65_535, reportInvalid);
  const tls = readTls(environment, folder, problems);
  const baseUrl = readBaseUrl(environment, port, tls !== null, reportInvalid);
  const insecureHttp = readSwitch(environment, 'NUNCIO_INSECURE_HTTP', false, reportInvalid);
  if (mode === 'start' && !insecureHttp && baseUrl !== undefined && isPublicHttp(baseUrl)) {
    problems.push(
      `NUNCIO_BASE_URL is ${JSON.stringify(baseUrl)}: it must be an https origin or a loopback address, because http sends passwords and tokens unencrypted (NUNCIO_INSECURE_HTTP=1 allows it)`,
    );
  }
  const databaseUrl = readDatabaseUrl(environment, reportInvalid);
  const insecureSubscribers = readSwitch(
    environment,
    'NUNCIO_INSECURE_SUBSCRIBERS',
    mode === 'dev',
    reportInvalid,
  );
  if (environment.NUNCIO_INSECURE_SUBSCRIBERS === '1' && baseUrl && !mayBeInsecure(baseUrl)) {
    problems.push(
      `NUNCIO_INSECURE_SUBSCRIBERS is "1": it must be "0" or unset while the base URL is ${baseUrl} (https and not loopback)`,
    );
  }
  const secret = environment.NUNCIO_SECRET ?? null;
  if (secret !== null && Buffer.byteLength(secret) < secretBytesMin) {
    // The message must not contain the secret itself.
    problems.push(
      `NUNCIO_SECRET is ${Buffer.byteLength(secret)} bytes long: it must be ${secretBytesMin} bytes or more`,
    );
  }
  if (mode === 'start' && databaseUrl !== null && secret === null) {
    problems.push(
      `NUNCIO_SECRET is not set: with DATABASE_URL it must be ${secretBytesMin} bytes or more, the same on every node`,
    );
  }

  const configFile =
    environment.NUNCIO_CONFIG === undefined
      ? findConfigFile(folder)
      : resolve(folder, environment.NUNCIO_CONFIG);
  if (mode === 'start' && configFile === null && needsFile) problems.push(missingConfigFile(folder));

  const config: Config = {
    mode,
    folder,
    baseUrl: baseUrl ?? '',
    port,
    host: environment.HOST ?? (mode === 'start' ? '0.0.0.0' : '127.0.0.1'),
    databaseUrl,
    databaseSchema: readDatabaseSchema(environment, reportInvalid),
    databaseConnections: readInteger(
      environment,
      'NUNCIO_DATABASE_CONNECTIONS',
      connectionsDefault,
      connectionsMin,
      1_000,
      reportInvalid,
    ),
    dataDir: resolve(folder, environment.NUNCIO_DATA_DIR ?? 'data'),
    secret,
    insecureSubscribers: insecureSubscribers && baseUrl !== undefined && mayBeInsecure(baseUrl),
    retryScheduleSeconds: readRetrySchedule(environment, reportInvalid),
    rateLimitPerMinute: readInteger(environment, 'NUNCIO_RATE_LIMIT', 600, 0, 1_000_000_000, reportInvalid),
    ...readLoadSettings(environment, problems),
    nodeName: readNodeName(environment, reportInvalid),
    trustProxy: readTrustProxy(environment, reportInvalid),
    ...readEgressProxy(environment, reportInvalid),
    ...readMetricsSettings(environment, port, problems),
    ...readMailSettings(environment, baseUrl, problems),
    tls,
    clientCertificate: readClientFiles(environment, folder, problems),
    configFile,
    logLevel: readLogLevel(environment, reportInvalid),
    mayCreateDatabase: mode !== 'command',
  };
  if (problems.length > 0) throw new ConfigError(problems);
  return Object.freeze(config);
}

function readNodeName(environment: Environment, reportInvalid: ReportInvalid): string | null {
  const name = environment.NUNCIO_NODE_NAME;
  if (name === undefined) return null;
  if (!/^[\x21-\x7e]{1,255}$/.test(name)) {
    reportInvalid('NUNCIO_NODE_NAME', name, '1 to 255 visible ASCII characters');
  }
  return name;
}

type ReportInvalid = (name: keyof Environment, value: string, accepted: string) => void;

function readInteger(
  environment: Environment,
  name: 'PORT' | 'NUNCIO_RATE_LIMIT' | 'NUNCIO_DATABASE_CONNECTIONS' | 'NUNCIO_EGRESS_PROXY_CONNECTIONS',
  fallback: number,
  min: number,
  max: number,
  reportInvalid: ReportInvalid,
): number {
  const text = environment[name];
  if (text === undefined) return fallback;
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  reportInvalid(name, text, `an integer from ${min} to ${max}`);
  return fallback;
}

function readSwitch(
  environment: Environment,
  name: 'NUNCIO_INSECURE_HTTP' | 'NUNCIO_INSECURE_SUBSCRIBERS',
  fallback: boolean,
  reportInvalid: ReportInvalid,
): boolean {
  const text = environment[name];
  if (text === undefined) return fallback;
  if (text === '1') return true;
  if (text !== '0') reportInvalid(name, text, '"1" or "0"');
  return false;
}

function readBaseUrl(
  environment: Environment,
  port: number,
  hasTls: boolean,
  reportInvalid: ReportInvalid,
): string | undefined {
  const text = environment.NUNCIO_BASE_URL;
  if (text === undefined) return `${hasTls ? 'https' : 'http'}://localhost:${port}`;
  const url = URL.parse(text);
  const isOrigin =
    url !== null &&
    (url.protocol === 'https:' || url.protocol === 'http:') &&
    url.pathname === '/' &&
    url.search === '' &&
    url.hash === '' &&
    url.username === '' &&
    url.password === '';
  if (isOrigin && hasTls && url.protocol === 'http:') {
    reportInvalid('NUNCIO_BASE_URL', text, 'an https origin while NUNCIO_TLS_CERT_FILE is set');
    return undefined;
  }
  if (isOrigin) return url.origin;
  reportInvalid(
    'NUNCIO_BASE_URL',
    withoutPassword(text),
    'an http or https origin without path, query and credentials, like https://api.example.com',
  );
  return undefined;
}

function readDatabaseUrl(environment: Environment, reportInvalid: ReportInvalid): string | null {
  const text = environment.DATABASE_URL;
  if (text === undefined) return null;
  const accepted = databaseUrlError(text);
  if (accepted === undefined) return text;
  // Without a scheme, it may be the secret of another setting.
  reportInvalid('DATABASE_URL', /^\w+:\/\/|=/.test(text) ? withoutPassword(text) : '***', accepted);
  return null;
}

function readDatabaseSchema(environment: Environment, reportInvalid: ReportInvalid): string {
  const text = environment.NUNCIO_DATABASE_SCHEMA ?? defaultSchema;
  if (!isSchemaName(text)) reportInvalid('NUNCIO_DATABASE_SCHEMA', text, schemaShape);
  return text;
}

const schemaShape =
  'a name of up to 40 lower-case letters, digits and underscores that does not begin with a digit or pg_ and is not public';

function readRetrySchedule(environment: Environment, reportInvalid: ReportInvalid): readonly number[] {
  const text = environment.NUNCIO_RETRY_SCHEDULE ?? defaultRetrySchedule;
  const steps = text.split(',').map(parseDurationSeconds);
  const valid = steps.filter((step) => step !== undefined && step >= 1 && step <= retryStepSecondsMax);
  if (valid.length === steps.length && steps.length <= retryStepsMax) return Object.freeze(valid as number[]);
  reportInvalid(
    'NUNCIO_RETRY_SCHEDULE',
    text,
    `1 to ${retryStepsMax} pauses from 1s to 7d, like ${defaultRetrySchedule}`,
  );
  return [];
}

function readTrustProxy(environment: Environment, reportInvalid: ReportInvalid): readonly string[] {
  const text = environment.NUNCIO_TRUST_PROXY;
  if (text === undefined) return [];
  const entries = text.split(',').map((entry) => entry.trim());
  if (entries.every(isAddressOrRange)) return Object.freeze(entries);
  reportInvalid(
    'NUNCIO_TRUST_PROXY',
    text,
    'addresses or CIDR ranges with a prefix of 1 bit or more, separated by commas, like 10.0.0.5,fd00::/8',
  );
  return [];
}

function readEgressProxy(
  environment: Environment,
  reportInvalid: ReportInvalid,
): Pick<Config, 'egressProxy' | 'egressProxyConnections'> {
  const name = 'NUNCIO_EGRESS_PROXY_CONNECTIONS';
  return {
    egressProxy: readEgressProxyUrl(environment, reportInvalid),
    egressProxyConnections: readInteger(environment, name, 1_000, 16, 100_000, reportInvalid),
  };
}

function readEgressProxyUrl(environment: Environment, reportInvalid: ReportInvalid): string | null {
  const text = environment.NUNCIO_EGRESS_PROXY;
  if (text === undefined) return null;
  const url = URL.parse(text);
  const isProxy =
    url !== null &&
    url.protocol === 'http:' &&
    url.hostname !== '' &&
    url.pathname === '/' &&
    url.search === '' &&
    url.hash === '' &&
    (url.password === '' || url.username !== '') &&
    isDecodable(url.username + url.password);
  if (isProxy) return text;
  reportInvalid(
    'NUNCIO_EGRESS_PROXY',
    withoutPassword(text),
    'a URL like http://user:password@proxy.example:3128',
  );
  return null;
}

function isDecodable(text: string): boolean {
  try {
    return decodeURIComponent(text) !== undefined;
  } catch {
    return false;
  }
}

function isAddressOrRange(entry: string): boolean {
  const [address = '', prefix, ...rest] = entry.split('/');
  const family = isIP(address);
  if (family === 0 || rest.length > 0) return false;
  // Zones are local to this machine. A prefix of 0 bits, rejected below, would trust everyone.
  if (address.includes('%')) return false;
  if (prefix === undefined) return true;
  return /^[1-9]\d{0,2}$/.test(prefix) && Number(prefix) <= (family === 4 ? 32 : 128);
}

function readLogLevel(environment: Environment, reportInvalid: ReportInvalid): LogLevel {
  const text = environment.LOG_LEVEL ?? 'info';
  const level = logLevels.find((candidate) => candidate === text);
  if (level === undefined) reportInvalid('LOG_LEVEL', text, `one of ${logLevels.join(', ')}`);
  return level ?? 'info';
}

/** Whether passwords and tokens are sent over a network unencrypted. */
export function isPublicHttp(baseUrl: string): boolean {
  const { protocol, hostname } = new URL(baseUrl);
  return protocol === 'http:' && !isLoopbackHost(hostname);
}

/** Whether the base URL is one of development: plain http or a loopback host. */
function mayBeInsecure(baseUrl: string): boolean {
  const url = new URL(baseUrl);
  return url.protocol === 'http:' || isLoopbackHost(url.hostname);
}

/** Whether a host name, as the URL standard serializes it, is `localhost`, `*.localhost`, 127.0.0.0/8 or ::1. */
export function isLoopbackHost(hostname: string): boolean {
  return (
    hostname === 'localhost' ||
    hostname.endsWith('.localhost') ||
    hostname === '[::1]' ||
    (isIP(hostname) === 4 && hostname.startsWith('127.'))
  );
}
