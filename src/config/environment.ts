/**
 * The environment: the only module that reads `process.env`.
 */

import { enableCompileCache } from 'node:module';
import { fileURLToPath } from 'node:url';
import { nearestName } from '../shared/nearest.ts';

const names = [
  /**
   * The public origin of the server; also the issuer. `https`, or `http` on loopback. With `https`, responses
   * carry `Strict-Transport-Security` for a year.
   * @default `http://localhost:<PORT>`, `https` with a certificate
   */
  'NUNCIO_BASE_URL',
  /**
   * TCP port to listen on.
   * @default `3000`
   */
  'PORT',
  /**
   * Address to listen on.
   * @default `127.0.0.1` in `dev`, `0.0.0.0` in `start`
   */
  'HOST',
  /**
   * PostgreSQL 15 or later, such as `postgres://user:password@host:5432/database`; can be the database of
   * another application: see docs/settings.md#a-database-that-others-use.
   * @default none: the embedded PostgreSQL 18
   */
  'DATABASE_URL',
  /**
   * The PostgreSQL schema of all tables and functions: 1 to 40 lower-case letters, digits and underscores,
   * the same on every node; not `public`.
   * @default `nuncio`
   */
  'NUNCIO_DATABASE_SCHEMA',
  /**
   * Maximum number of connections of this node to PostgreSQL, 10 to 1000; see docs/operations.md#connections.
   * @default `22`
   */
  'NUNCIO_DATABASE_CONNECTIONS',
  /**
   * Directory of the embedded PostgreSQL and the generated secret.
   * @default `./data`
   */
  'NUNCIO_DATA_DIR',
  /**
   * Key material for cookies and for sealed data, 32 bytes or more, the same on every node. Back it up:
   * without it, sealed data such as signing keys and webhook secrets cannot be read.
   * @default generated in the data directory; required by `start` with a `DATABASE_URL`
   */
  'NUNCIO_SECRET',
  /**
   * `1` lets `start` serve an `http` base URL that is not on loopback. Without it, `start` refuses such a
   * URL, because others on the network path could read passwords, codes and tokens, and cookies cannot be
   * `Secure`. Use it only in networks that are trusted as a whole, such as an encrypted private overlay.
   * @default `0`
   */
  'NUNCIO_INSECURE_HTTP',
  /**
   * `1` lets subscriptions use `http` and loopback addresses; refused when the base URL is `https` and not
   * loopback.
   * @default `1` in `dev`, otherwise `0`
   */
  'NUNCIO_INSECURE_SUBSCRIBERS',
  /**
   * Pauses after each failed attempt: 1 to 20, each 1 s to 7 d, such as `5s,30s,2m`.
   * @default `5s,30s,2m,10m,30m,1h,3h,6h,12h,24h,24h`
   */
  'NUNCIO_RETRY_SCHEDULE',
  /**
   * Requests per minute; `0` for no limit, also of what accounts add to resources of others. At the API: for
   * each grant, and for each client that acts for itself; ten times the limit if it has a scope that only the
   * operator gives, and none for what only such a client may request. At the token, introspection and revocation endpoints,
   * and for pushed and device requests: ten times the limit for each authenticated client. For each address:
   * authorization and login requests, pages of sign-out and devices, reads and changes of registrations, pushed and
   * device requests of clients that registered themselves; and requests to these endpoints in which no client authenticates. An
   * IPv6 address counts as its /64; a /48 has three times the limit.
   * @default `600`
   */
  'NUNCIO_RATE_LIMIT',
  /**
   * Requests that this node works for at once, 0 to 10,000; `0` for no limit. The number falls by itself while the event
   * loop or the database is slow, so it seldom needs a change. See docs/operations.md#overload.
   * @default `64`
   */
  'NUNCIO_CONCURRENT_REQUESTS',
  /**
   * Connections of clients to this node, 0 to 1,000,000; `0` for no limit. One network gets 7/16 of them, a proxy in
   * `NUNCIO_TRUST_PROXY` all.
   * @default `10000`
   */
  'NUNCIO_CLIENT_CONNECTIONS',
  /**
   * Unique name of this server among the servers on the same database, such as a StatefulSet pod name: 1 to
   * 255 visible ASCII characters. A starting server takes over from its predecessor with the same name when
   * that has stopped, or 3.25 s after its last heartbeat; beside a running one it does not start. Without a
   * name, deliveries of a server that died on another machine or in another container wait for up to 7
   * seconds.
   * @default none
   */
  'NUNCIO_NODE_NAME',
  /**
   * Addresses or CIDR ranges of reverse proxies whose `X-Forwarded-For` (and client certificates, where
   * `oauth.mtls` is set) is trusted, separated by commas; `0.0.0.0/0` is refused.
   * @default none
   */
  'NUNCIO_TRUST_PROXY',
  /**
   * The HTTP proxy for all connections to subscribers and apps' servers, such as
   * `http://user:password@proxy:3128`; see docs/settings.md#the-egress-proxy.
   * @default none
   */
  'NUNCIO_EGRESS_PROXY',
  /**
   * How many connections this node may have through that proxy at once, at least 16. Set it to what the proxy takes, divided by the number of nodes.
   * @default 1000
   */
  'NUNCIO_EGRESS_PROXY_CONNECTIONS',
  /**
   * The SMTP server that sends mail (docs/settings.md#mail), such as `smtp://user:password@mail.example.com:587`, or
   * `smtps://` for TLS from the start. Percent-encode special characters of the password.
   * @default none: no mail; `dev` shows mails at `/dev/mail`
   */
  'NUNCIO_SMTP_URL',
  /**
   * The sender's address of mails. The name is that of your brand.
   * @default `no-reply@` and the host of the base URL
   */
  'NUNCIO_MAIL_FROM',
  /**
   * Port that serves `/metrics` and nothing else, as plain HTTP on `HOST`; the server's port then has no
   * `/metrics`. See docs/settings.md#who-may-read-the-metrics.
   * @default none: on the server's port
   */
  'NUNCIO_METRICS_PORT',
  /**
   * Token that readers of `/metrics` send as `Authorization: Bearer …`: 16 to 255 visible ASCII characters.
   * @default none
   */
  'NUNCIO_METRICS_TOKEN',
  /**
   * PEM files of the server's certificate (with the chain) and key: the server then terminates TLS, and the
   * base URL is `https`. Reloaded when they change and on `SIGHUP`; invalid files are logged and the previous
   * certificate stays.
   * @default none: plain HTTP, behind a proxy that terminates TLS
   */
  'NUNCIO_TLS_CERT_FILE',
  'NUNCIO_TLS_KEY_FILE',
  /**
   * PEM file of the CAs that issue client certificates, for `oauth.mtls: 'direct'`.
   * @default none: only certificates that apps registered themselves
   */
  'NUNCIO_TLS_CLIENT_CA_FILE',
  /**
   * PEM files of the client certificate (with the chain) and its key, which deliveries of subscriptions with
   * `auth: { "type": "mtls" }` present. `/meta` shows the certificate. Read at start: restart the server
   * after a renewal.
   * @default none: such subscriptions are refused
   */
  'NUNCIO_CLIENT_CERT_FILE',
  'NUNCIO_CLIENT_KEY_FILE',
  /**
   * Path of `nuncio.config.ts`.
   * @default `nuncio.config.ts`, `.mts`, `.js` or `.mjs` in the current directory. `start` and the commands
   * require one; without one, `dev` runs the example in the package on its embedded database, and so do
   * commands beside it
   */
  'NUNCIO_CONFIG',
  /**
   * `fatal`, `error`, `warn`, `info`, `debug`, `trace` or `silent`.
   * @default `info`
   */
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
