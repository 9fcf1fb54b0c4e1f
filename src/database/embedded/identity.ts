/**
 * As which user PostgreSQL runs. It refuses to run as root, and `initdb` refuses a user without a name.
 *
 *   ordinary user                  → as that user
 *   root, or a user without a name → the same user, seen as another one from inside a user namespace: no chown, no
 *                                    other user needs to reach anything
 *   root, namespaces refused       → another existing system user (home.ts finds a place that it can reach)
 */
import { type SpawnOptions, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';

export interface Identity {
  /** For the log: "as root in a user namespace". */
  description: string;
  /** Words before the program on its command line. */
  prefix: readonly string[];
  /** The other user, where there is one; only root may switch to it. */
  other?: { uid: number; gid: number };
}

/** How much of a program's output is kept, in characters. */
const outputLengthMax = 1_048_576;
const fallbackUsers = ['postgres', 'nobody'];

/** The identity of this process, or undefined where PostgreSQL would refuse it. */
export function ownIdentity(): Identity | undefined {
  if (process.getuid?.() === 0) return undefined;
  try {
    return { description: `as ${userInfo().username}`, prefix: [] };
  } catch {
    // A container run with a uid that /etc/passwd does not know.
    return undefined;
  }
}

/** This process's user inside a user namespace, or undefined if `postgres` cannot run so and write in `directory`. */
export async function namespaceIdentity(postgres: string, directory: string): Promise<Identity | undefined> {
  const uid = namedUid();
  if (process.platform !== 'linux' || uid === undefined) return undefined;
  const prefix = ['unshare', '--user', `--map-user=${uid}`, `--map-group=${uid}`];
  const user = process.getuid?.() === 0 ? 'root' : `uid ${process.getuid?.()}`;
  const identity = { description: `as ${user} in a user namespace`, prefix };
  // Inside the namespace root has no power over other users' folders, so this is about the paths as well.
  const script = 'cd "$1" && test -w . && exec "$2" --version';
  const { code } = await run(identity, 'sh', ['-c', script, 'sh', directory, postgres]);
  return code === 0 ? identity : undefined;
}

/** The first of the usual unprivileged system users that exists. */
export async function fallbackIdentity(): Promise<Identity | undefined> {
  for (const name of fallbackUsers) {
    const identity = await identityOf(name);
    if (identity !== undefined) return identity;
  }
  return undefined;
}

/** An existing user by name or uid. */
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

/** Can this identity enter the directory? */
export async function canEnter(identity: Identity, directory: string): Promise<boolean> {
  return (await run(identity, 'sh', ['-c', 'cd "$1"', 'sh', directory])).code === 0;
}

/** Can this identity run the program? */
export async function canRun(identity: Identity, program: string): Promise<boolean> {
  return (await run(identity, program, ['--version'])).code === 0;
}

/**
 * The command line and options that run a program under an identity. The program sees none of our environment: settings
 * of other PostgreSQLs (`PGDATA`, `PGPORT`) must not reach it, and secrets have no business there. `env` leaves by exec,
 * so the process that was spawned is the program.
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

/** Runs a program to its end; the code is -1 when it could not be started or was killed. */
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

/** A uid other than root's that has a name on this machine: `initdb` looks the name up. */
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
