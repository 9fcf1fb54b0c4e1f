/**
 * Tokens per second: client credentials, code exchange and refresh, Nuncio on its embedded PostgreSQL beside the
 * bare engine (oidc-provider with its memory store), in one run; and what each flow costs the database.
 *
 *   npx node bench/token.ts [--seconds 5] [--rounds 3] [--connections 32] [--flow refresh] [--profile nuncio]
 */

import { type ChildProcess, fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { sql } from 'kysely';
import { Pool } from 'undici';
import { createAccount } from '../src/accounts/account.ts';
import { createClient } from '../src/clients/client.ts';
import { newId } from '../src/crypto/ids.ts';
import { type Database, openDatabase } from '../src/database/database.ts';
import { startEmbedded } from '../src/database/embedded/embedded.ts';
import { migrate } from '../src/database/migrate.ts';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '5' },
    rounds: { type: 'string', default: '3' },
    connections: { type: 'string', default: '32' },
    flow: { type: 'string' },
    profile: { type: 'string' },
  },
});
const seconds = Number(values.seconds);
const rounds = Number(values.rounds);
const connections = Number(values.connections);

const verifier = 'v'.repeat(43);
const challenge = createHash('sha256').update(verifier).digest('base64url');
const redirectUri = 'https://app.example/callback';
const scope = 'read:posts';
/** Codes made at once: the bare engine's memory store forgets what is older than about a thousand entries. */
const codesAtOnce = 250;

/** What is measured: an authorization server that gives codes away. */
interface Target {
  name: string;
  baseUrl: string;
  authorization: string;
  pid: number;
  makeCodes: (count: number) => Promise<string[]>;
  stop: () => Promise<void>;
}

interface Measured {
  perSecond: number;
  /** Microseconds of the server's own process for each answer: what a busy machine does not change much. */
  cpuMicros: number;
  /** Of the database, for each answer; null where there is none. */
  statements: number | null;
  walBytes: number | null;
}

type Flow = (target: Target, db: Database | null) => Promise<Measured>;

/** Posts forms on all connections at once until the time is over or the forms are. */
async function load(
  target: Target,
  next: (previous: Record<string, string> | undefined) => Record<string, string> | undefined,
  limitMs: number,
): Promise<{ answers: number; ms: number }> {
  const pool = new Pool(target.baseUrl, { connections, pipelining: 1 });
  const headers = {
    authorization: target.authorization,
    'content-type': 'application/x-www-form-urlencoded',
  };
  let answers = 0;
  const startedAt = performance.now();
  const loop = async () => {
    let previous: Record<string, string> | undefined;
    while (performance.now() - startedAt < limitMs) {
      const form = next(previous);
      if (form === undefined) return;
      const body = new URLSearchParams(form).toString();
      const response = await pool.request({ method: 'POST', path: '/oauth/token', headers, body });
      const answer = (await response.body.json()) as Record<string, string>;
      if (response.statusCode !== 200) throw new Error(`${target.name}: ${JSON.stringify(answer)}`);
      previous = answer;
      answers += 1;
    }
  };
  await Promise.all(Array.from({ length: connections }, loop));
  const ms = performance.now() - startedAt;
  await pool.close();
  return { answers, ms };
}

async function costs(db: Database | null): Promise<{ commits: number; wal: number }> {
  if (db === null) return { commits: 0, wal: 0 };
  await sql`select pg_stat_force_next_flush()`.execute(db);
  // Counters of the server's connections arrive within a second.
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const { rows } = await sql<{ commits: string; wal: string }>`
    select xact_commit::text as commits, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::text as wal
    from pg_stat_database where datname = current_database()`.execute(db);
  return { commits: Number(rows[0]?.commits), wal: Number(rows[0]?.wal) };
}

/** Milliseconds of processor time that a process has had. */
function cpuMs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

async function measured(
  target: Target,
  db: Database | null,
  work: () => Promise<{ answers: number; ms: number }>,
): Promise<Measured> {
  const before = await costs(db);
  const cpuBefore = cpuMs(target.pid);
  const { answers, ms } = await work();
  const cpu = cpuMs(target.pid) - cpuBefore;
  const after = await costs(db);
  return {
    perSecond: (answers / ms) * 1_000,
    cpuMicros: (cpu / answers) * 1_000,
    statements: db === null ? null : (after.commits - before.commits) / answers,
    walBytes: db === null ? null : (after.wal - before.wal) / answers,
  };
}

const flows: Record<string, Flow> = {
  'client credentials': (target, db) =>
    measured(target, db, () =>
      load(target, () => ({ grant_type: 'client_credentials', scope }), seconds * 1_000),
    ),
  async 'code exchange'(target, db) {
    const total = { answers: 0, ms: 0 };
    const costsOf = { statements: 0, walBytes: 0, cpuMicros: 0, rounds: 0 };
    while (total.ms < seconds * 1_000) {
      const codes = await target.makeCodes(db === null ? codesAtOnce : 4_000);
      const one = await measured(target, db, async () => {
        const form = (code: string) => ({
          grant_type: 'authorization_code',
          code,
          code_verifier: verifier,
          redirect_uri: redirectUri,
        });
        const next = () => {
          const code = codes.pop();
          return code === undefined ? undefined : form(code);
        };
        const done = await load(target, next, 60_000);
        total.answers += done.answers;
        total.ms += done.ms;
        return done;
      });
      costsOf.statements += one.statements ?? 0;
      costsOf.walBytes += one.walBytes ?? 0;
      costsOf.cpuMicros += one.cpuMicros;
      costsOf.rounds += 1;
    }
    return {
      perSecond: (total.answers / total.ms) * 1_000,
      cpuMicros: costsOf.cpuMicros / costsOf.rounds,
      statements: db === null ? null : costsOf.statements / costsOf.rounds,
      walBytes: db === null ? null : costsOf.walBytes / costsOf.rounds,
    };
  },
  async refresh(target, db) {
    const codes = await target.makeCodes(connections);
    const first: string[] = [];
    await load(
      target,
      (previous) => {
        if (previous?.refresh_token !== undefined) first.push(previous.refresh_token);
        const code = codes.pop();
        if (code === undefined) return undefined;
        return { grant_type: 'authorization_code', code, code_verifier: verifier, redirect_uri: redirectUri };
      },
      60_000,
    );
    return measured(target, db, () =>
      load(
        target,
        (previous) => {
          const token = previous?.refresh_token ?? first.pop();
          return token === undefined ? undefined : { grant_type: 'refresh_token', refresh_token: token };
        },
        seconds * 1_000,
      ),
    );
  },
};

/** Starts the part named in a process of its own. */
async function startPart(
  part: 'nuncio' | 'bare',
  options: Record<string, string>,
): Promise<[ChildProcess, string]> {
  const child = fork(fileURLToPath(new URL('./support/token_server.ts', import.meta.url)), [part], {
    env: { ...process.env, NODE_ENV: 'production', BENCH: JSON.stringify(options) },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    execArgv: values.profile === part ? ['--cpu-prof', `--cpu-prof-dir=${tmpdir()}`] : [],
  });
  const baseUrl = await new Promise<string>((resolve, reject) => {
    child.once('message', (message) => resolve(String(message)));
    child.once('exit', (code) => reject(new Error(`${part} ended with ${code}`)));
  });
  return [child, baseUrl];
}

function stopPart(child: ChildProcess): Promise<void> {
  child.removeAllListeners('exit');
  return new Promise((resolve) => {
    child.once('exit', () => resolve());
    child.kill('SIGTERM');
  });
}

async function startBare(): Promise<Target> {
  const [child, baseUrl] = await startPart('bare', { challenge, redirectUri, scope });
  return {
    name: 'bare engine',
    pid: child.pid ?? 0,
    baseUrl,
    authorization: `Basic ${Buffer.from('bench:secret').toString('base64')}`,
    makeCodes: (count) =>
      new Promise((resolve) => {
        child.once('message', (codes) => resolve(codes as string[]));
        child.send({ count });
      }),
    stop: () => stopPart(child),
  };
}

async function startNuncio(databaseUrl: string, db: Database): Promise<Target> {
  const account = await createAccount(db, { email: 'bench@example.com', password: null });
  const { client, secret } = await createClient(db, {
    name: 'Bench',
    redirectUris: [redirectUri],
    grantTypes: ['authorization_code', 'refresh_token', 'client_credentials'],
    scopes: [scope],
  });
  const [child, baseUrl] = await startPart('nuncio', { databaseUrl });
  return {
    name: 'nuncio',
    pid: child.pid ?? 0,
    baseUrl,
    authorization: `Basic ${Buffer.from(`${client.id}:${secret}`).toString('base64')}`,
    async makeCodes(count) {
      const run = newId();
      const now = Math.floor(Date.now() / 1_000);
      // As the authorization endpoint writes them, many at once.
      await sql`
        with made as (
          select n, gen_random_uuid() as grant_id from generate_series(1, ${count}::int) n),
        granted as (
          insert into grants (id, account_id, client_id, scopes, details)
          select grant_id, ${account.id}::uuid, ${client.id}, ${[scope]}::text[],
            ${JSON.stringify({ openid: { scope }, resources: { [baseUrl]: scope } })}::jsonb
          from made)
        insert into authorization_codes (digest, grant_id, payload, expires_at)
        select sha256((${run} || '-' || n)::bytea), grant_id, jsonb_build_object(
          'kind', 'AuthorizationCode', 'iat', ${now}::int, 'exp', ${now + 3_600}::int,
          'accountId', ${account.id}::text, 'clientId', ${client.id}::text, 'grantId', grant_id,
          'codeChallenge', ${challenge}::text, 'codeChallengeMethod', 'S256', 'authTime', ${now}::int,
          'redirectUri', ${redirectUri}::text, 'resource', ${baseUrl}::text, 'scope', ${scope}::text,
          'sessionUid', 'bench'), now() + interval '1 hour'
        from made`.execute(db);
      return Array.from({ length: count }, (_, index) => `${run}-${index + 1}`);
    },
    stop: () => stopPart(child),
  };
}

function median(numbers: number[]): number {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? Number.NaN;
}

const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
const postgres = await startEmbedded({ dataDir, role: 'server' });
const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 2 });
try {
  await migrate(postgres.connectionString);
  const bare = await startBare();
  const nuncio = await startNuncio(postgres.connectionString, db);
  for (const [name, flow] of Object.entries(flows)) {
    if (values.flow !== undefined && values.flow !== name) continue;
    const results: { bare: Measured[]; nuncio: Measured[] } = { bare: [], nuncio: [] };
    for (let round = 0; round < rounds; round += 1) {
      results.bare.push(await flow(bare, null));
      results.nuncio.push(await flow(nuncio, db));
    }
    const ours = median(results.nuncio.map((result) => result.perSecond));
    const theirs = median(results.bare.map((result) => result.perSecond));
    const cpu = median(results.nuncio.map((result) => result.cpuMicros));
    const cpuBare = median(results.bare.map((result) => result.cpuMicros));
    const statements = median(results.nuncio.map((result) => result.statements ?? 0));
    const wal = median(results.nuncio.map((result) => result.walBytes ?? 0));
    process.stdout.write(
      `${name.padEnd(20)} bare ${theirs.toFixed(0).padStart(6)}/s  nuncio ${ours.toFixed(0).padStart(6)}/s  ` +
        `ratio ${(ours / theirs).toFixed(2)}  CPU ${cpuBare.toFixed(0)} and ${cpu.toFixed(0)} us  transactions ${statements.toFixed(2)}  WAL ${wal.toFixed(0)} bytes\n`,
    );
  }
  await bare.stop();
  await nuncio.stop();
} finally {
  await db.destroy();
  await postgres.stop();
  rmSync(dataDir, { recursive: true, force: true });
}
