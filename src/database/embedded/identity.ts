/**
 * The user that PostgreSQL runs as. PostgreSQL refuses to run as root, and `initdb` refuses a user without a name.
 *
 *   ordinary user                  → that user
 *   root, or a user without a name → the same user, mapped to another uid in a user namespace: file owners stay as they are,
 *                                    and no other user needs access
 *   root, namespaces not permitted → another existing system user (home.ts finds a directory that it can reach)
 */
import { type SpawnOptions, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';

export interface Identity {
  /** For the log, such as "as root in a user namespace". */
  description: string;
  /** Command line words before the program. */
  prefix: readonly string[];
  /** The user to switch to, which only root may do. */
  other?: { uid: number; gid: number };
}

/** Characters of a program's output to keep. */
const outputLengthMax = 1_048_576;
const fallbackUsers = ['postgres', 'nobody'];

/** Returns the user of this process, or undefined if PostgreSQL would refuse it. */
export function ownIdentity(): Identity | undefined {
  if (process.getuid?.() === 0) return undefined;
  try {
    return { description: `as ${userInfo().username}`, prefix: [] };
  } catch {
    // A container may run with a uid that is not in /etc/passwd.
    return undefined;
  }
}

/** Maps this user in a user namespace. Returns undefined if `postgres` cannot run there, or cannot write in `directory`. */
export async function namespaceIdentity(postgres: string, directory: string): Promise<Identity | undefined> {
  const uid = namedUid();
  if (process.platform !== 'linux' || uid === undefined) return undefined;
  const prefix = ['unshare', '--user', `--map-user=${uid}`, `--map-group=${uid}`];
  const user = process.getuid?.() === 0 ? 'root' : `uid ${process.getuid?.()}`;
  const identity = { description: `as ${user} in a user namespace`, prefix };
  // In the namespace root has no privileges on directories of other users, so the paths are checked too.
  const script = 'cd "$1" && test -w . && exec "$2" --version';
  const { code } = await run(identity, 'sh', ['-c', script, 'sh', directory, postgres]);
  return code === 0 ? identity : undefined;
}

/** Returns the first existing unprivileged system user. */
export async function fallbackIdentity(): Promise<Identity | undefined> {
  for (const name of fallbackUsers) {
    const identity = await identityOf(name);
    if (identity !== undefined) return identity;
  }
  return undefined;
}

/** Finds a user by name or uid. */
export async function identityOf(user: string | number): Promise<Identity | undefined> {
  const self: Identity = { description: '', prefix: [] };
  const [uid, gid, name] = await Promise.all(
    ['-u', '-g', '-un'].map(async (flag) => {
      const { code, output } = await run(self, 'id', [flag, String(user)]);
      return code === 0 ? output.trim() : '';
    }),
  );
  if (!uid || !gid || !name || uid === '0') return undefined;
  return { description: `as the user ${name}`, prefix: [], other: { uid: Number(uid), gid: Number(gid) } };
}

export async function canEnter(identity: Identity, directory: string): Promise<boolean> {
  return (await run(identity, 'sh', ['-c', 'cd "$1"', 'sh', directory])).code === 0;
}

export async function canRun(identity: Identity, program: string): Promise<boolean> {
  return (await run(identity, program, ['--version'])).code === 0;
}

/**
 * Returns the command line and the options that run a program as an identity. The program gets an empty environment: it must
 * not see secrets or the settings of another PostgreSQL (`PGDATA`, `PGPORT`). `env` replaces itself with the program, so the
 * spawned process id is that of the program.
 */
export function commandOf(identity: Identity, program: string, args: readonly string[]) {
  const words = [
    ...identity.prefix,
    'env',
    '-i',
    'LC_ALL=C',
    'PATH=/usr/local/bin:/usr/bin:/bin',
    program,
    ...args,
  ];
  const options: SpawnOptions = { cwd: '/', ...identity.other };
  return { command: words[0] as string, args: words.slice(1), options };
}

/** Runs a program until it ends. The code is -1 if it did not start or was killed. */
export async function run(
  identity: Identity,
  program: string,
  args: readonly string[],
): Promise<{ code: number; output: string }> {
  const line = commandOf(identity, program, args);
  const child = spawn(line.command, line.args, { ...line.options, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  const keep = (chunk: Buffer) => {
    output = (output + chunk.toString('utf8')).slice(-outputLengthMax);
  };
  child.stdout?.on('data', keep);
  child.stderr?.on('data', keep);
  return new Promise((resolve) => {
    child.on('error', (error) => resolve({ code: -1, output: error.message }));
    child.on('close', (code) => resolve({ code: code ?? -1, output }));
  });
}

/** Returns a uid that is not root's and has a name on this machine, because `initdb` looks the name up. */
function namedUid(): number | undefined {
  let passwd: string;
  try {
    passwd = readFileSync('/etc/passwd', 'utf8');
  } catch {
    return undefined;
  }
  const uids = passwd.split('\n').map((line) => Number(line.split(':')[2] ?? Number.NaN));
  return uids.includes(1000) ? 1000 : uids.find((uid) => uid > 0);
}
