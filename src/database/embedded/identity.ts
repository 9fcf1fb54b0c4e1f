/**
 * The user that PostgreSQL runs as, and running programs as that user. PostgreSQL refuses to run as root.
 *
 *   ordinary user → that user
 *   root          → the owner of the data or, for new data, `postgres` or `nobody`. The process keeps one capability of root,
 *                   CAP_DAC_OVERRIDE, so that it reaches programs and data below directories of root.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';

export interface Identity {
  /** For the log, such as "as the user nobody". */
  description: string;
  /** Command line words before the program. */
  prefix: readonly string[];
  uid: number;
  gid: number;
}

/** Characters of a program's output to keep. */
const outputLengthMax = 1_048_576;
const unprivilegedUsers = ['postgres', 'nobody'];

/** Returns the user of this process. */
export function ownIdentity(): Identity {
  const [uid, gid] = [process.getuid?.() ?? 0, process.getgid?.() ?? 0];
  try {
    return { description: `as ${userInfo().username}`, prefix: [], uid, gid };
  } catch {
    // A container may run with a uid that is not in /etc/passwd.
    return { description: `as uid ${uid}`, prefix: [], uid, gid };
  }
}

/**
 * Returns the user that root runs PostgreSQL as.
 * @param owner of the data; root if there are none yet
 * @returns undefined if the data are root's and the machine has no unprivileged user
 */
export function unprivilegedIdentity(owner: { uid: number; gid: number }): Identity | undefined {
  if (owner.uid !== 0) return switchTo(`uid ${owner.uid}, which owns the data`, owner.uid, owner.gid);
  const users = readFileSync('/etc/passwd', 'utf8').split('\n');
  for (const name of unprivilegedUsers) {
    const [, , uid, gid] = users.find((line) => line.startsWith(`${name}:`))?.split(':') ?? [];
    if (Number(uid) > 0) return switchTo(`the user ${name}`, Number(uid), Number(gid));
  }
  return undefined;
}

function switchTo(user: string, uid: number, gid: number): Identity {
  // Without the securebit, access(2), which initdb uses, would not consider the capability.
  const capabilities = [
    '--inh-caps=+dac_override',
    '--ambient-caps=+dac_override',
    '--securebits=+no_setuid_fixup',
  ];
  // `setpriv` fails with an allocator that starts threads.
  const withoutPreload = ['/usr/bin/env', '-u', 'LD_PRELOAD'];
  const prefix = [
    ...withoutPreload,
    'setpriv',
    `--reuid=${uid}`,
    `--regid=${gid}`,
    '--clear-groups',
    ...capabilities,
  ];
  return { description: `as ${user}`, prefix, uid, gid };
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
  return { command: words[0] as string, args: words.slice(1), options: { cwd: '/' } };
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
