/** Runs docs/existing-app.md as a reader does: writes its files, executes its SQL and its commands, in order. */

import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';

const page = new URL('../../docs/existing-app.md', import.meta.url);
/** First line of a command that runs until the reader stops it. */
const ownTerminal = '# In a terminal of its own\n';

export type Step =
  | { type: 'file'; name: string; text: string }
  | { type: 'sql' | 'command' | 'server'; text: string };

/** Every code block is a step, so that a block which nobody runs cannot go unnoticed. */
async function readSteps(): Promise<Step[]> {
  const text = await readFile(page, 'utf8');
  return [...text.matchAll(/^```(\w*)\n([\s\S]*?)^```$/gm)]
    .filter(([, language]) => language !== 'mermaid')
    .map(([, language = '', block = '']) => toStep(language, block));
}

function toStep(language: string, text: string): Step {
  const [, name] = /^(?:\/\/|#) ([\w.]+\.(?:mjs|mts|env))\b/.exec(text) ?? [];
  if (name !== undefined) return { type: 'file', name, text };
  if (language === 'sql') return { type: 'sql', text };
  if (language === 'sh') return { type: text.startsWith(ownTerminal) ? 'server' : 'command', text };
  throw new Error(`neither a file nor a command:\n${text}`);
}

export interface GuideOptions {
  /** Empty, or with the packages that `adapt` leaves out. */
  folder: string;
  /** The application's database, for an administrator. */
  database: URL;
  /** Ports of Nuncio, the application and the partner's app, instead of 3000, 4200 and 4201. */
  ports: readonly [number, number, number];
  environment: NodeJS.ProcessEnv;
  /** Changes a command before it runs. Only for where a package comes from. */
  adapt: (command: string) => string;
}

export interface RunningGuide {
  /** The URLs of Nuncio, the application and the partner's app. */
  urls: [string, string, string];
  /** What the servers have written. */
  output: () => string;
  stop: () => Promise<void>;
}

export async function runGuide(options: GuideOptions): Promise<RunningGuide> {
  const { folder, database, ports, environment, adapt } = options;
  const urls = ports.map((port) => `http://localhost:${port}`) as RunningGuide['urls'];
  const ready = [`${urls[0]}/readyz`, `${urls[1]}/login`, urls[2]];
  const servers: ChildProcess[] = [];
  let output = '';
  let secret = '';
  const stop = async () => {
    for (const server of servers.reverse()) await stopServer(server);
  };
  const place = (text: string) =>
    text
      .replaceAll(/\b(3000|4200|4201)\b/g, (port) => String(ports[[3000, 4200, 4201].indexOf(Number(port))]))
      .replaceAll('localhost:5432/shop', `${database.host}${database.pathname}${database.search}`)
      .replaceAll('<client_secret>', secret);
  const shell = { cwd: folder, env: environment };
  try {
    for (const step of await readSteps()) {
      const text = place(step.text);
      if (step.type === 'file') await writeFile(join(folder, step.name), text);
      else if (step.type === 'sql') await execute(database, text);
      else if (step.type === 'command') {
        const { stdout } = await promisify(execFile)('sh', ['-ec', adapt(text)], shell);
        secret = /"client_secret": ?"([^"]+)"/.exec(stdout)?.[1] ?? secret;
      } else {
        const url = ready.shift() as string;
        if (await isServed(url)) throw new Error(`${url} is served already: choose another port`);
        // In a process group of its own: `npx` and what it starts get one signal.
        const server = spawn('sh', ['-ec', text], { ...shell, detached: true });
        servers.push(server);
        for (const stream of [server.stdout, server.stderr]) {
          stream.setEncoding('utf8').on('data', (part: string) => {
            output += part;
          });
        }
        const isEnded = await waitFor(server, url);
        if (isEnded) throw new Error(`a server ended:\n${text}\n${output}`);
      }
    }
  } catch (error) {
    await stop();
    throw error;
  }
  return { urls, output: () => output, stop };
}

async function execute(database: URL, text: string): Promise<void> {
  const client = new pg.Client({ connectionString: database.href });
  await client.connect();
  try {
    await client.query(text);
  } finally {
    await client.end();
  }
}

/** Waits until the URL responds. @returns whether the process has ended instead */
async function waitFor(server: ChildProcess, url: string): Promise<boolean> {
  while (!(await isServed(url))) {
    if (hasEnded(server)) return true;
    await sleep(100);
  }
  return false;
}

async function isServed(url: string): Promise<boolean> {
  return fetch(url).then(
    ({ ok }) => ok,
    () => false,
  );
}

async function stopServer(server: ChildProcess): Promise<void> {
  if (hasEnded(server)) return;
  const ended = once(server, 'close');
  process.kill(-(server.pid as number), 'SIGTERM');
  await ended;
}

function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null;
}
