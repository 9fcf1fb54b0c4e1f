/**
 * `nuncio dev` (`npm start`): runs the server in development mode, creates a demo user and a demo client, and prints the
 * next steps.
 */

import { pino } from 'pino';
import pretty from 'pino-pretty';
import type { Config } from '../config/config.ts';
import type { Command } from './command.ts';
import { demoClientId, demoUser, ensureDemo } from './demo_data.ts';
import { serve } from './serve.ts';

/** What npm publishes is JavaScript, without the demo. */
const isInstalled = !import.meta.filename.endsWith('.ts');

export const dev: Command = {
  mode: 'dev',
  options: {},
  help: [],
  async run(_input, { config, print }) {
    const stream = pretty({
      colorize: process.stdout.isTTY,
      ignore: 'pid,hostname',
      singleLine: true,
      errorLikeObjectKeys: ['err'],
    });
    const logger = pino({ level: config.logLevel, base: null }, stream);
    let clientSecret: string | null = null;
    await serve({
      config,
      logger,
      migrate: true,
      prepare: async (db, storage) => {
        clientSecret = await ensureDemo(db, config, storage.secret);
      },
      tour: () => ({ user: clientSecret === null ? null : demoUser }),
      ready: () => print(nextSteps(config, clientSecret)),
    });
  },
};

function nextSteps({ baseUrl, configFile }: Config, clientSecret: string | null): string {
  const lines = [
    '',
    `  Nuncio runs at  ${baseUrl}`,
    `  Console         ${baseUrl}/console`,
    `  Reference       ${baseUrl}/docs`,
    `  Platform        ${configFile ?? 'the example; declare yours in nuncio.config.ts'}`,
  ];
  if (clientSecret === null) {
    lines.push('  No demo user and client: the server is reachable from other computers.');
  } else {
    lines.push(
      `  Demo user       ${demoUser.email}  password  ${demoUser.password}`,
      '',
      '  Try it from another terminal:',
      `    curl -u ${demoClientId}:${clientSecret} -d grant_type=client_credentials ${baseUrl}/oauth/token`,
      isInstalled
        ? '    npx nuncio trigger push      publishes an example event for the demo user'
        : '    npm run demo      an app that a user connects and that receives webhooks',
    );
  }
  return [...lines, ''].join('\n');
}
