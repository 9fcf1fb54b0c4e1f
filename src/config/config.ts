/**
 * Settings: the environment made into one frozen `Config`. Every problem is found before any is reported,
 * each in one line that names the setting, what it was and what it may be.
 */

import { isIP } from 'node:net';
import { resolve } from 'node:path';
import pg from 'pg';
import { defaultSchema, isSchemaName } from '../database/schema.ts';
import { findConfigFile } from './config_file.ts';
import { connectionsDefault, connectionsMin } from './connections.ts';
import { parseDurationSeconds } from './duration.ts';
import type { Environment } from './environment.ts';

/** How the process was started: `dev` by `npm start`, `start` in production, `command` for the rest. */
export type Mode = 'dev' | 'start' | 'command';

export interface Config {
  readonly mode: Mode;
  /** Origin without a trailing slash; it is also the issuer. */
  readonly baseUrl: string;
  readonly port: number;
  readonly host: string;
  /** Null: the embedded PostgreSQL. */
  readonly databaseUrl: string | null;
  /** The PostgreSQL schema that everything of Nuncio is in. */
  readonly databaseSchema: string;
  /** Connections to the database that this node opens at most. */
  readonly databaseConnections: number;
  /** Absolute path. */
  readonly dataDir: string;
  /** Null: made and kept in the data directory. */
  readonly secret: string | null;
  readonly insecureSubscribers: boolean;
  /** Pauses after each failed attempt, in seconds. */
  readonly retryScheduleSeconds: readonly number[];
  /** Requests a minute for each token; 0 is none. */
  readonly rateLimitPerMinute: number;
  /** Of this server among all on the database; null where the operator has not named it. */
  readonly nodeName: string | null;
  /** Addresses or CIDR ranges of reverse proxies whose `X-Forwarded-*` is believed. */
  readonly trustProxy: readonly string[];
  /** URL of the proxy that outgoing connections go through, perhaps with credentials; null for none. */
  readonly egressProxy: string | null;
  /** Null: the server speaks plain HTTP, and whatever is in front of it TLS. */
  readonly tls: TlsFiles | null;
  /** Absolute path of the platform's declaration, or null for the shipped example. */
  readonly configFile: string | null;
  readonly logLevel: LogLevel;
}

/** Absolute paths of PEM files. */
export interface TlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /** Authorities whose client certificates count as issued by one. */
  readonly clientCaFile: string | null;
}

const logLevels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export type LogLevel = (typeof logLevels)[number];

/** Specification of deliveries: 5 s, 30 s, 2 min, 10 min, 30 min, 1 h, 3 h, 6 h, 12 h, 24 h, 24 h. */
export const defaultRetrySchedule = '5s,30s,2m,10m,30m,1h,3h,6h,12h,24h,24h';

/** The shortest secret accepted, in bytes. */
export const secretBytesMin = 32;
/** The most steps a retry schedule may have, and the longest step in seconds. */
export const retryStepsMax = 20;
export const retryStepSecondsMax = 7 * 86_400;

/** Wrong settings: one line each in `problems`. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly problems: readonly string[];

  constructor(problems: readonly string[], options?: ErrorOptions) {
    super(problems.join('\n'), options);
    this.problems = problems;
  }
}

/**
 * @param unknown problems with names that are no settings
 * @throws ConfigError with every problem found
 */
export function loadConfig(environment: Environment, mode: Mode, unknown: readonly string[] = []): Config {
  const problems: string[] = [...unknown];
  const wrong = (name: keyof Environment, was: string, mayBe: string) => {
    problems.push(`${name} is ${JSON.stringify(was)}: it may be ${mayBe}`);
  };

  const port = readInteger(environment, 'PORT', 3000, 0, 65_535, wrong);
  const tls = readTls(environment, problems);
  const baseUrl = readBaseUrl(environment, port, tls !== null, wrong);
  const insecureHttp = readSwitch(environment, 'NUNCIO_INSECURE_HTTP', false, wrong);
  if (mode === 'start' && !insecureHttp && baseUrl !== undefined && isPublicHttp(baseUrl)) {
    problems.push(
      `NUNCIO_BASE_URL is ${JSON.stringify(baseUrl)}: it may be an https origin or a loopback address; over http everybody on the way reads passwords and tokens (NUNCIO_INSECURE_HTTP=1 accepts that)`,
    );
  }
  const databaseUrl = readDatabaseUrl(environment, wrong);
  const insecureSubscribers = readSwitch(environment, 'NUNCIO_INSECURE_SUBSCRIBERS', mode === 'dev', wrong);
  if (environment.NUNCIO_INSECURE_SUBSCRIBERS === '1' && baseUrl && !mayBeInsecure(baseUrl)) {
    problems.push(
      `NUNCIO_INSECURE_SUBSCRIBERS is "1": it may be "0" or unset while the base URL is ${baseUrl} (https and not loopback)`,
    );
  }
  const secret = environment.NUNCIO_SECRET ?? null;
  if (secret !== null && Buffer.byteLength(secret) < secretBytesMin) {
    // The value itself is a secret and stays out of the message.
    problems.push(
      `NUNCIO_SECRET is ${Buffer.byteLength(secret)} bytes long: it may be ${secretBytesMin} bytes or more`,
    );
  }
  if (mode === 'start' && databaseUrl !== null && secret === null) {
    problems.push(
      `NUNCIO_SECRET is not set: with a DATABASE_URL it must be ${secretBytesMin} bytes or more, the same on every node`,
    );
  }

  const config: Config = {
    mode,
    baseUrl: baseUrl ?? '',
    port,
    host: environment.HOST ?? (mode === 'start' ? '0.0.0.0' : '127.0.0.1'),
    databaseUrl,
    databaseSchema: readDatabaseSchema(environment, wrong),
    databaseConnections: readInteger(
      environment,
      'NUNCIO_DATABASE_CONNECTIONS',
      connectionsDefault,
      connectionsMin,
      1_000,
      wrong,
    ),
    dataDir: resolve(environment.NUNCIO_DATA_DIR ?? './data'),
    secret,
    insecureSubscribers: insecureSubscribers && baseUrl !== undefined && mayBeInsecure(baseUrl),
    retryScheduleSeconds: readRetrySchedule(environment, wrong),
    rateLimitPerMinute: readInteger(environment, 'NUNCIO_RATE_LIMIT', 600, 0, 1_000_000_000, wrong),
    nodeName: readNodeName(environment, wrong),
    trustProxy: readTrustProxy(environment, wrong),
    egressProxy: readEgressProxy(environment, wrong),
    tls,
    configFile:
      environment.NUNCIO_CONFIG === undefined
        ? findConfigFile(process.cwd())
        : resolve(environment.NUNCIO_CONFIG),
    logLevel: readLogLevel(environment, wrong),
  };
  if (problems.length > 0) throw new ConfigError(problems);
  return Object.freeze(config);
}

function readNodeName(environment: Environment, wrong: Wrong): string | null {
  const name = environment.NUNCIO_NODE_NAME;
  if (name === undefined) return null;
  if (!/^[\x21-\x7e]{1,255}$/.test(name)) {
    wrong('NUNCIO_NODE_NAME', name, '1 to 255 visible ASCII characters');
  }
  return name;
}

type Wrong = (name: keyof Environment, was: string, mayBe: string) => void;

function readInteger(
  environment: Environment,
  name: 'PORT' | 'NUNCIO_RATE_LIMIT' | 'NUNCIO_DATABASE_CONNECTIONS',
  fallback: number,
  min: number,
  max: number,
  wrong: Wrong,
): number {
  const text = environment[name];
  if (text === undefined) return fallback;
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  wrong(name, text, `a whole number from ${min} to ${max}`);
  return fallback;
}

function readSwitch(
  environment: Environment,
  name: 'NUNCIO_INSECURE_HTTP' | 'NUNCIO_INSECURE_SUBSCRIBERS',
  fallback: boolean,
  wrong: Wrong,
): boolean {
  const text = environment[name];
  if (text === undefined) return fallback;
  if (text === '1') return true;
  if (text !== '0') wrong(name, text, '"1" or "0"');
  return false;
}

function readTls(environment: Environment, problems: string[]): TlsFiles | null {
  const {
    NUNCIO_TLS_CERT_FILE: cert,
    NUNCIO_TLS_KEY_FILE: key,
    NUNCIO_TLS_CLIENT_CA_FILE: clientCa,
  } = environment;
  if (cert !== undefined && key !== undefined) {
    const clientCaFile = clientCa === undefined ? null : resolve(clientCa);
    return Object.freeze({ certFile: resolve(cert), keyFile: resolve(key), clientCaFile });
  }
  const given = Object.entries({ cert, key, clientCa }).some(([, path]) => path !== undefined);
  if (given && cert === undefined) {
    problems.push('NUNCIO_TLS_CERT_FILE is not set: it must be, beside the other settings of TLS');
  }
  if (given && key === undefined) {
    problems.push('NUNCIO_TLS_KEY_FILE is not set: it must be, beside the other settings of TLS');
  }
  return null;
}

function readBaseUrl(
  environment: Environment,
  port: number,
  hasTls: boolean,
  wrong: Wrong,
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
    wrong('NUNCIO_BASE_URL', text, 'an https origin while NUNCIO_TLS_CERT_FILE is set');
    return undefined;
  }
  if (isOrigin) return url.origin;
  wrong(
    'NUNCIO_BASE_URL',
    withoutPassword(text),
    'an http or https origin without path, query or credentials, like https://api.example.com',
  );
  return undefined;
}

function readDatabaseUrl(environment: Environment, wrong: Wrong): string | null {
  const text = environment.DATABASE_URL;
  if (text === undefined) return null;
  // A password before an empty host is for a socket: the driver takes it, URLs do not.
  const isUrl = URL.canParse(text.replace('@/', '@socket/')) && /^postgres(ql)?:\/\//.test(text);
  if (!isUrl) {
    wrong('DATABASE_URL', withoutPassword(text), databaseUrlShape);
    return null;
  }
  const fault = driverFault(text);
  if (fault !== undefined) wrong('DATABASE_URL', withoutPassword(text), `${databaseUrlShape} (${fault})`);
  return fault === undefined ? text : null;
}

function readDatabaseSchema(environment: Environment, wrong: Wrong): string {
  const text = environment.NUNCIO_DATABASE_SCHEMA ?? defaultSchema;
  if (!isSchemaName(text)) wrong('NUNCIO_DATABASE_SCHEMA', text, schemaShape);
  return text;
}

const schemaShape =
  'a name of up to 40 lower-case letters, digits and underscores that does not begin with a digit or pg_, and is not public';
const databaseUrlShape = 'a URL like postgres://user:password@host:5432/database';

/** What the driver cannot use of a URL: bad escapes, certificate files that cannot be read, ports that do not exist. */
function driverFault(databaseUrl: string): string | undefined {
  try {
    const { host, port } = new pg.Client({ connectionString: databaseUrl });
    if (!(port >= 0 && port <= 65_535)) return 'there is no such port';
    return /[\p{Cc}\p{Zs}\uFFFD]/u.test(host) ? 'there is no such host' : undefined;
  } catch (error) {
    const { code, path, message } = error as NodeJS.ErrnoException;
    return path === undefined ? message : `${path}: ${code}`;
  }
}

function readRetrySchedule(environment: Environment, wrong: Wrong): readonly number[] {
  const text = environment.NUNCIO_RETRY_SCHEDULE ?? defaultRetrySchedule;
  const steps = text.split(',').map(parseDurationSeconds);
  const valid = steps.filter((step) => step !== undefined && step >= 1 && step <= retryStepSecondsMax);
  if (valid.length === steps.length && steps.length <= retryStepsMax) return Object.freeze(valid as number[]);
  wrong(
    'NUNCIO_RETRY_SCHEDULE',
    text,
    `1 to ${retryStepsMax} pauses from 1s to 7d, like ${defaultRetrySchedule}`,
  );
  return [];
}

function readTrustProxy(environment: Environment, wrong: Wrong): readonly string[] {
  const text = environment.NUNCIO_TRUST_PROXY;
  if (text === undefined) return [];
  const entries = text.split(',').map((entry) => entry.trim());
  if (entries.every(isAddressOrRange)) return Object.freeze(entries);
  wrong(
    'NUNCIO_TRUST_PROXY',
    text,
    'addresses or CIDR ranges of 1 bit or more divided by commas, like 10.0.0.5,fd00::/8',
  );
  return [];
}

function readEgressProxy(environment: Environment, wrong: Wrong): string | null {
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
  wrong('NUNCIO_EGRESS_PROXY', withoutPassword(text), 'a URL like http://user:password@proxy.example:3128');
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
  // A zone is a name of this machine's own; a range of everybody is nobody's proxy.
  if (address.includes('%')) return false;
  if (prefix === undefined) return true;
  return /^[1-9]\d{0,2}$/.test(prefix) && Number(prefix) <= (family === 4 ? 32 : 128);
}

function readLogLevel(environment: Environment, wrong: Wrong): LogLevel {
  const text = environment.LOG_LEVEL ?? 'info';
  const level = logLevels.find((candidate) => candidate === text);
  if (level === undefined) wrong('LOG_LEVEL', text, `one of ${logLevels.join(', ')}`);
  return level ?? 'info';
}

/** True where passwords and tokens cross a network in the clear. */
export function isPublicHttp(baseUrl: string): boolean {
  const { protocol, hostname } = new URL(baseUrl);
  return protocol === 'http:' && !isLoopbackHost(hostname);
}

/** True for loopback hosts and for plain http: the places where development happens. */
function mayBeInsecure(baseUrl: string): boolean {
  const url = new URL(baseUrl);
  return url.protocol === 'http:' || isLoopbackHost(url.hostname);
}

/** `localhost`, `*.localhost`, 127.0.0.0/8 and ::1, as WHATWG URL prints them. */
export function isLoopbackHost(hostname: string): boolean {
  return (
    hostname === 'localhost' ||
    hostname.endsWith('.localhost') ||
    hostname === '[::1]' ||
    (isIP(hostname) === 4 && hostname.startsWith('127.'))
  );
}

function withoutPassword(text: string): string {
  // Whatever stands before the host may be a password, also one with an @ or a slash in it.
  return text.replace(/^.*@/s, '***@').replace(/([?&]password=)[^&]*/gi, '$1***');
}
