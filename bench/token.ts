/**
 * Tokens per second: client credentials, code exchange and refresh. Compares Nuncio on its embedded PostgreSQL with
 * the bare engine (oidc-provider with an in-memory store) in one run, and prints the database cost of each flow.
 * Nuncio runs as in production, with a log line for each request (to `/dev/null`).
 *
 * The speed of a virtual machine can halve within seconds. Rounds are therefore short and many, the two take turns,
 * and a ratio is the median over the rounds. Both warm up for some seconds before the first round.
 *
 *   npx node bench/token.ts [--seconds 1] [--rounds 11] [--connections 32] [--flow refresh] [--profile nuncio]
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
import { record } from './support/record.ts';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '1' },
    rounds: { type: 'string', default: '11' },
    connections: { type: 'string', default: '32' },
    flow: { type: 'string' },
    profile: { type: 'string' },
  },
});
const seconds = Number(values.seconds);
const rounds = Number(values.rounds);
const connections = Number(values.connections);
const warmUpSeconds = 4;

const verifier = 'v'.repeat(43);
const challenge = createHash('sha256').update(verifier).digest('base64url');
const redirectUri = 'https://app.example/callback';
const scope = 'read:posts';
/** Number of codes created at once. */
const codesAtOnce = 4_000;

/** A measured authorization server that creates codes directly. */
interface Target {
  name: string;
  baseUrl: string;
  authorization: string;
  pid: number;
  pool: Pool;
  makeCodes: (count: number) => Promise<string[]>;
  stop: () => Promise<void>;
}

interface Measured {
  answers: number;
  perSecond: number;
  /** Microseconds of processor time for each response, of the server's process and of its main thread. */
  cpuMicros: number;
  mainMicros: number;
}

/** Database work during the measurement: writing transactions and WAL. */
interface Counters {
  writes: number;
  walBytes: number;
}

/** @param seconds the duration, without preparation */
type Flow = (target: Target, seconds: number, counters?: Counters) => Promise<Measured>;

/** Posts forms on all connections concurrently until the time is over or no form is left. */
async function load(
  target: Target,
  next: (previous: Record<string, string> | undefined) => Record<string, string> | undefined,
  limitMs: number,
): Promise<{ answers: number; ms: number }> {
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
      const response = await target.pool.request({ method: 'POST', path: '/oauth/token', headers, body });
      const answer = (await response.body.json()) as Record<string, string>;
      if (response.statusCode !== 200) throw new Error(`${target.name}: ${JSON.stringify(answer)}`);
      previous = answer;
      answers += 1;
    }
  };
  await Promise.all(Array.from({ length: connections }, loop));
  return { answers, ms: performance.now() - startedAt };
}

async function readCounters(): Promise<Counters> {
  const { rows } = await sql<{ writes: string; wal: string }>`
    select pg_snapshot_xmax(pg_current_snapshot())::text as writes,
      pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::text as wal`.execute(db);
  return { writes: Number(rows[0]?.writes), walBytes: Number(rows[0]?.wal) };
}

/** Milliseconds of processor time of a process, and of its main thread. */
function cpuMs(pid: number): { all: number; main: number } {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  const nanoseconds = readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0];
  return { all: (Number(fields[11]) + Number(fields[12])) * 10, main: Number(nanoseconds) / 1_000_000 };
}

/** Runs the parts of a round in sequence. The time between them does not count. */
async function measured(
  target: Target,
  parts: AsyncIterable<() => Promise<{ answers: number; ms: number }>>,
  counters?: Counters,
): Promise<Measured> {
  const total = { answers: 0, ms: 0, all: 0, main: 0 };
  for await (const part of parts) {
    const read = counters && (await readCounters());
    const before = cpuMs(target.pid);
    const { answers, ms } = await part();
    const after = cpuMs(target.pid);
    if (counters !== undefined && read !== undefined) {
      const now = await readCounters();
      counters.writes += now.writes - read.writes;
      counters.walBytes += now.walBytes - read.walBytes;
    }
    total.answers += answers;
    total.ms += ms;
    total.all += after.all - before.all;
    total.main += after.main - before.main;
  }
  return {
    answers: total.answers,
    perSecond: (total.answers / total.ms) * 1_000,
    cpuMicros: (total.all / total.answers) * 1_000,
    mainMicros: (total.main / total.answers) * 1_000,
  };
}

const exchange = (code: string) => ({
  grant_type: 'authorization_code',
  code,
  code_verifier: verifier,
  redirect_uri: redirectUri,
});

const flows: Record<string, Flow> = {
  'client credentials': (target, seconds, counters) =>
    measured(
      target,
      (async function* () {
        const form = { grant_type: 'client_credentials', scope };
        yield () => load(target, () => form, seconds * 1_000);
      })(),
      counters,
    ),
  'code exchange': (target, seconds, counters) =>
    measured(
      target,
      (async function* () {
        let ms = 0;
        while (ms < seconds * 1_000) {
          const codes = await target.makeCodes(codesAtOnce);
          yield async () => {
            const done = await load(
              target,
              () => {
                const code = codes.pop();
                return code === undefined ? undefined : exchange(code);
              },
              60_000,
            );
            ms += done.ms;
            return done;
          };
        }
      })(),
      counters,
    ),
  refresh: (target, seconds, counters) =>
    measured(
      target,
      (async function* () {
        const codes = await target.makeCodes(connections);
        const first: string[] = [];
        const begin = (previous: Record<string, string> | undefined) => {
          if (previous?.refresh_token !== undefined) first.push(previous.refresh_token);
          const code = codes.pop();
          return code === undefined ? undefined : exchange(code);
        };
        await load(target, begin, 60_000);
        const refresh = (previous: Record<string, string> | undefined) => {
          const token = previous?.refresh_token ?? first.pop();
          return token === undefined ? undefined : { grant_type: 'refresh_token', refresh_token: token };
        };
        yield () => load(target, refresh, seconds * 1_000);
      })(),
      counters,
    ),
};

/** Starts the named server in a separate process. */
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
    pool: new Pool(baseUrl, { connections, pipelining: 1 }),
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
    pool: new Pool(baseUrl, { connections, pipelining: 1 }),
    baseUrl,
    authorization: `Basic ${Buffer.from(`${client.id}:${secret}`).toString('base64')}`,
    async makeCodes(count) {
      const run = newId();
      const now = Math.floor(Date.now() / 1_000);
      // Writes the same rows as the authorization endpoint, in bulk.
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

function quantile(numbers: number[], share: number): number {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length * share)] ?? Number.NaN;
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
    const results: { bare: Measured; nuncio: Measured }[] = [];
    // Vacuums after the previous flow, so that its garbage does not count here.
    await sql`vacuum analyze`.execute(db);
    await sql`checkpoint`.execute(db);
    for (const target of [bare, nuncio]) await flow(target, warmUpSeconds);
    for (let round = 0; round < rounds; round += 1) {
      results.push({ bare: await flow(bare, seconds), nuncio: await flow(nuncio, seconds) });
    }
    const counters: Counters = { writes: 0, walBytes: 0 };
    const { answers } = await flow(nuncio, seconds, counters);
    const ratios = results.map((result) => result.nuncio.perSecond / result.bare.perSecond);
    const median = (who: 'bare' | 'nuncio', what: keyof Measured) =>
      quantile(
        results.map((result) => result[who][what]),
        0.5,
      );
    record({
      of: 'tokens',
      flow: name,
      perSecond: median('nuncio', 'perSecond'),
      barePerSecond: median('bare', 'perSecond'),
      micros: median('nuncio', 'cpuMicros'),
    });
    const cost = (who: 'bare' | 'nuncio') => {
      const of = (what: keyof Measured) => median(who, what).toFixed(0);
      return `${who} ${of('perSecond')}/s, ${of('cpuMicros')} us (main thread ${of('mainMicros')})`;
    };
    process.stdout.write(
      `${name}: ${cost('bare')}; ${cost('nuncio')}; ` +
        `ratio ${quantile(ratios, 0.5).toFixed(2)} (half of all ${quantile(ratios, 0.25).toFixed(2)} to ${quantile(ratios, 0.75).toFixed(2)}); ` +
        `${(counters.writes / answers).toFixed(2)} writing transactions, ${(counters.walBytes / answers).toFixed(0)} bytes of WAL\n`,
    );
  }
  await bare.stop();
  await nuncio.stop();
} finally {
  await db.destroy();
  await postgres.stop();
  rmSync(dataDir, { recursive: true, force: true });
}
