/** `nuncio listen` as a developer runs it: a process that signs in once, and loses nothing whatever happens to it. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { memoryStore, once, verify } from '../../src/verify/verify.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { prepareProcess, startProcess } from '../support/servers/process.ts';
import { type ReachableServer, startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';

const cli = fileURLToPath(new URL('../../src/cli.ts', import.meta.url));
const cleanly = { recursive: true, force: true } as const;

/** A TCP proxy in front of the server, which can cut all connections. */
async function startCuttingProxy(t: TestContext, portOfServer: () => number) {
  const sockets = new Set<Socket>();
  const proxy = createServer((socket) => {
    const upstream = connect(portOfServer(), '127.0.0.1');
    for (const each of [socket, upstream]) {
      sockets.add(each);
      each
        .on('error', () => {})
        .on('close', () => {
          sockets.delete(each);
          socket.destroy();
          upstream.destroy();
        });
    }
    socket.pipe(upstream).pipe(socket);
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  const cut = () => {
    for (const socket of sockets) socket.destroy();
  };
  t.after(() => {
    cut();
    proxy.close();
  });
  return { port: (proxy.address() as AddressInfo).port, cut };
}

/** The developer's own receiver: it verifies each event and handles it once. */
async function startReceiver(t: TestContext, secret: () => string) {
  const handle = once(memoryStore());
  const handled: string[] = [];
  let requests = 0;
  let failed = '';
  const server = createHttpServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', async () => {
      requests += 1;
      try {
        const body = Buffer.concat(chunks);
        const delivery = await verify({ headers: request.headers, body, secret: secret() });
        await handle(delivery, () => {
          handled.push(JSON.parse(body.toString()).ref.slice('refs/heads/'.length));
        });
        response.writeHead(204).end();
      } catch (error) {
        failed ||= String(error);
        response.writeHead(400).end();
      }
    });
  });
  const listen = (port: number) => new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  await listen(0);
  const { port } = server.address() as AddressInfo;
  t.after(() => server.close());
  return {
    url: `http://127.0.0.1:${port}/hooks`,
    handled,
    requests: () => requests,
    failed: () => failed,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
    reopen: () => listen(port),
  };
}

async function startStage(t: TestContext) {
  let port = 0;
  const proxy = await startCuttingProxy(t, () => port);
  const host = await prepareProcess(t, { NUNCIO_BASE_URL: `http://localhost:${proxy.port}` });
  port = Number(host.settings.PORT);
  const start = async () => {
    const nuncio = startProcess(t, ['start'], host.settings);
    await nuncio.ready();
    return nuncio;
  };
  const nuncio = await start();
  const server = { baseUrl: host.baseUrl, config: host.config, db: host.db };
  return { ...(await createDeveloper(t, server)), proxy, start, nuncio };
}

/** A user of a server, with a home directory of their own. */
async function createDeveloper(t: TestContext, { baseUrl, config, db }: ReachableServer) {
  const server = { baseUrl, config, db };
  const account = await createTestAccount(server);
  const publisher = await createPublisher(server);
  const home = await mkdtemp(join(tmpdir(), 'nuncio-listen-'));
  const kills: (() => Promise<unknown>)[] = [];
  t.after(async () => {
    // A command that still runs would write into the directory while it is removed.
    await Promise.all(kills.map((kill) => kill()));
    await rm(home, cleanly);
  });
  return { ...server, account, publisher, home, kills, stateFile: join(home, 'nuncio', 'listen.json') };
}

type Developer = Awaited<ReturnType<typeof createDeveloper>>;

/** For the tests that do not stop it. */
const shared = await startTestServer({ after });

function startListening(
  { baseUrl, home, kills }: Pick<Developer, 'baseUrl' | 'home' | 'kills'>,
  ...words: string[]
) {
  const { PATH, NODE_COMPILE_CACHE } = process.env;
  const child: ChildProcess = spawn(process.execPath, [cli, 'listen', ...words], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH, NODE_COMPILE_CACHE, HOME: home, XDG_CONFIG_HOME: home, NUNCIO_BASE_URL: baseUrl },
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', (text) => (output += text));
  const ended = new Promise<number | null>((resolve) => child.once('exit', (code) => resolve(code)));
  kills.push(() => {
    child.kill('SIGKILL');
    return ended;
  });
  return {
    child,
    ended,
    output: () => output,
    says: (text: RegExp) =>
      until(
        async () => text.exec(output),
        (found) => found !== null || child.exitCode !== null,
      ),
    end: () => {
      child.kill('SIGINT');
      return ended;
    },
  };
}

/** Confirms what the printed link shows, as the user does. */
async function approve({ baseUrl, account }: Developer, output: string, action = 'allow'): Promise<void> {
  const link = /http\S+\/device\?user_code=\S+/.exec(output)?.[0];
  assert.ok(link, output);
  const browser = new TestBrowser(baseUrl);
  const confirmation = await browser.submit(await browser.open(link), {});
  const login = await browser.submit(confirmation, {});
  const consent = await browser.submit(login, {
    email: account.email,
    password: account.password,
    action: 'login',
  });
  await browser.submit(consent, { action });
}

async function signIn(stage: Developer, ...words: string[]) {
  const listening = startListening(stage, ...words);
  await listening.says(/user_code=/);
  await approve(stage, listening.output());
  await listening.says(/Signing secret: /);
  return listening;
}

const secretIn = (output: string) => /Signing secret: (\S+)/.exec(output)?.[1] as string;

test('a thousand events through a restart, a cut, a suspension and an expired token: none missing, none twice', async (t) => {
  const stage = await startStage(t);
  let secret = '';
  const receiver = await startReceiver(t, () => secret);
  let listening = await signIn(stage, '--forward', receiver.url, '--kinds', 'push');
  secret = secretIn(listening.output());
  const names = Array.from({ length: 1_000 }, (_each, index) => String(index));
  const send = (from: number, to: number) => publish(stage.publisher, stage.account, names.slice(from, to));
  const arrived = (count: number) =>
    until(
      async () => receiver.handled.length,
      (now) => now >= count || listening.child.exitCode !== null,
    );

  await send(0, 200);
  await arrived(60);
  stage.proxy.cut();
  await arrived(200);

  await send(200, 400);
  await arrived(250);
  await stage.nuncio.end('SIGTERM');
  const second = await stage.start();
  await arrived(400);

  listening.child.kill('SIGSTOP');
  await send(400, 600);
  stage.proxy.cut();
  listening.child.kill('SIGCONT');
  await arrived(600);

  await receiver.close();
  await send(600, 800);
  await listening.says(/waiting for http/);
  await receiver.reopen();
  await arrived(800);
  assert.equal(await listening.end(), 0, listening.output());

  await send(800, 900);
  const state = JSON.parse(await readFile(stage.stateFile, 'utf8'));
  const known = state[stage.baseUrl];
  assert.equal(known.subscriptions.push.after, 800);
  // As an access token that ended while the computer slept.
  known.tokens.access_token = 'expired';
  await writeFile(stage.stateFile, JSON.stringify(state));
  listening = startListening(stage, '--forward', receiver.url, '--kinds', 'push', '--replay', '800');
  await listening.says(/Signing secret: /);
  assert.equal(secretIn(listening.output()), secret, 'the subscription and its secret are used again');
  await send(900, 1_000);
  await second.end('SIGKILL');
  await stage.start();
  await arrived(1_000);
  assert.equal(await listening.end(), 0);
  assert.deepEqual(receiver.handled, names, listening.output().slice(-2_000));
  assert.equal(receiver.failed(), '');
});

test('the tokens are in a file that only its owner can read, also in place of a link', async (t) => {
  const stage = await createDeveloper(t, shared);
  const listening = await signIn(stage);
  assert.equal((await stat(stage.stateFile)).mode & 0o777, 0o600);
  assert.equal(await listening.end(), 0);
  const elsewhere = join(stage.home, 'elsewhere.json');
  await writeFile(elsewhere, await readFile(stage.stateFile, 'utf8'), { mode: 0o644 });
  const before = await readFile(elsewhere, 'utf8');
  await rm(stage.stateFile);
  await symlink(elsewhere, stage.stateFile);
  const again = startListening(stage, '--kinds', 'push');
  await again.says(/Signing secret: /);
  await again.end();
  assert.equal(await readFile(elsewhere, 'utf8'), before);
  assert.equal((await stat(stage.stateFile)).mode & 0o777, 0o600);
});

test('a withdrawn grant ends the command with its reason, and the next start signs in again', async (t) => {
  const stage = await createDeveloper(t, shared);
  const listening = await signIn(stage);
  const { rows } = await sql<{ id: string }>`
    select id from grants where client_id = 'nuncio-cli' and account_id = ${stage.account.id}`.execute(
    stage.db,
  );
  for (const { id } of rows) await withdrawGrant(stage.db, id, 'user', stage.account.id);
  assert.equal(await listening.ended, 1);
  assert.match(listening.output(), /withdrawn/);
  const again = startListening(stage);
  await again.says(/withdrawn|user_code=/);
  if (!/user_code=/.test(again.output())) {
    assert.equal(await again.ended, 1);
    await startListening(stage).says(/user_code=/);
  }
});

test('a denied request and a missing server end the command with a sentence', async (t) => {
  const stage = await createDeveloper(t, shared);
  const listening = startListening(stage);
  await listening.says(/user_code=/);
  await approve(stage, listening.output(), 'deny');
  assert.equal(await listening.ended, 1);
  assert.match(listening.output(), /nuncio: the request was denied/);
  const nobody = startListening({ ...stage, baseUrl: 'http://localhost:9' });
  assert.equal(await nobody.ended, 1);
  assert.match(nobody.output(), /nuncio: http:\/\/localhost:9 cannot be reached .*NUNCIO_BASE_URL/);
});

test('bodies and kinds cannot move the terminal’s cursor or hide text', async (t) => {
  const stage = await createDeveloper(t, shared);
  const listening = await signIn(stage, '--print');
  await publish(stage.publisher, stage.account, ['\u001b[2J\u009b31m\u202egnp.exe\u0007']);
  await listening.says(/gnp\.exe/);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for
  assert.doesNotMatch(listening.output(), /[\u001b\u009b\u202e\u0007]/);
});

test('wrong options are refused before anything is sent', async () => {
  const stage = { baseUrl: 'http://localhost:9', home: tmpdir(), kills: [] };
  for (const [words, message] of [
    [['--forward', 'ftp://x'], /--forward must be/],
    [['--kinds', 'a,,b'], /--kinds must be/],
    [['--replay', '-1'], /--replay/],
    [['--secret', 'short'], /--secret must be/],
  ] as const) {
    const listening = startListening(stage, ...words);
    assert.equal(await listening.ended, 2);
    assert.match(listening.output(), message);
  }
});
