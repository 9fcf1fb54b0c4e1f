/**
 * Explains failures that the operator can mend: one line with what is wrong, the setting, and what to do. Other errors are
 * defects and keep their stack.
 */

import pg from 'pg';
import type { Config } from '../config/config.ts';
import { DifferentSecretError } from '../crypto/sealing.ts';
import { isDatabaseUnavailable } from '../database/database.ts';

/** Errors whose message is sufficient. */
const plainErrors = new Set([
  'ConfigError',
  'EmbeddedError',
  'PlatformError',
  'CollectionsError',
  'CommandError',
  'SchemaError',
  'NodeNameError',
  'AccountError',
  'ClientError',
]);

/**
 * @param config undefined if the settings themselves are wrong
 * @returns the lines for the operator, or undefined for a defect
 */
export function explainFailure(error: unknown, config: Config | undefined): string[] | undefined {
  if (!(error instanceof Error)) return undefined;
  if (plainErrors.has(error.name)) return error.message.split('\n');
  if (config === undefined) return undefined;
  const line =
    error instanceof DifferentSecretError ? explainSecret(error, config) : explainDatabase(error, config);
  return line === undefined ? undefined : [line];
}

function explainSecret({ message }: Error, { secret, dataDir }: Config): string {
  const wanted = 'set NUNCIO_SECRET to the secret of the servers that use this database';
  return secret === null
    ? `${message} than the one in ${dataDir}/secret: restore that file, or ${wanted}`
    : `${message}: ${wanted}`;
}

/** What PostgreSQL refuses, by SQLSTATE, and what to do. */
const refusals: Readonly<Record<string, (at: Address) => string>> = {
  '28P01': ({ server, user }) => `${server} rejects the password of the user "${user}": correct it`,
  '28000': ({ server, user }) => `${server} does not let the user "${user}" connect: allow it`,
  '3D000': ({ server, database }) => `${server} has no database "${database}": create it, or correct the URL`,
  '42501': ({ user, database }) => `the user "${user}" lacks a privilege in the database "${database}"`,
};

interface Address {
  server: string;
  database: string;
  user: string;
}

function explainDatabase(error: Error, { databaseUrl }: Config): string | undefined {
  const { code, syscall, message } = error as NodeJS.ErrnoException;
  if (databaseUrl === null)
    return isUnavailable(error) ? `the database is unreachable: ${message}` : undefined;
  const at = addressOf(databaseUrl);
  const refusal = code === undefined ? undefined : refusals[code];
  if (refusal !== undefined && error instanceof pg.DatabaseError)
    return `DATABASE_URL: ${refusal(at)} (${oneLine(message)})`;
  if (isTlsError(error))
    return `DATABASE_URL: ${at.server} cannot be used with TLS: correct sslmode or sslrootcert in the URL (${oneLine(message)})`;
  if (/client password must be a (non-empty )?string/.test(message))
    return `DATABASE_URL: ${at.server} asks for the password of the user "${at.user}": add it to the URL`;
  if (!isUnavailable(error)) return undefined;
  // Several addresses of a host make an error without a message.
  const reason = oneLine(message) || `${syscall ?? 'connect'} ${code}`;
  return `the database is unreachable: ${reason}: start it, or correct DATABASE_URL (${at.server})`;
}

function isUnavailable(error: Error): boolean {
  // ENOENT is also the code of a missing PostgreSQL socket.
  if ((error as NodeJS.ErrnoException).syscall === 'open') return false;
  return isDatabaseUnavailable(error) || error.message === 'timeout expired';
}

function isTlsError({ code, message }: NodeJS.ErrnoException): boolean {
  return (
    /^(ERR_TLS_|ERR_SSL_|CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_)/.test(code ?? '') ||
    message === 'The server does not support SSL connections'
  );
}

/** The parts of the URL, without the password. */
function addressOf(databaseUrl: string): Address {
  const { host, port, database, user } = new pg.Client({ connectionString: databaseUrl });
  return { server: `${host}:${port}`, database: database ?? '', user: user ?? '' };
}

function oneLine(text: string): string {
  return text.trim().replace(/\s*\n\s*/g, ' ');
}
