/**
 * `nuncio dev` (`npm start`): runs the server in development mode, creates a demo user and a demo client, and prints the
 * next steps.
 */

import { pino } from 'pino';
import pretty from 'pino-pretty';
import type { Platform } from '../platform.ts';
import type { Command } from './command.ts';
import { ensureDemo } from './demo_data.ts';
import { createTour, nextSteps } from './tour.ts';

export const dev: Command = {
  mode: 'dev',
  async run(_input, { config, print }) {
    const stream = pretty({
      colorize: process.stdout.isTTY,
      ignore: 'pid,hostname',
      singleLine: true,
      errorLikeObjectKeys: ['err'],
    });
    const logger = pino({ level: config.logLevel, base: null }, stream);
    let clientSecret: string | null = null;
    const tourOf = (platform: Platform) =>
      createTour(platform, clientSecret !== null && platform.accounts.login === null);
    const { serve } = await import('./serve.ts');
    await serve({
      config,
      logger,
      migrate: true,
      prepare: async (db, storage, platform) => {
        const withUser = platform.accounts.login === null;
        clientSecret = await ensureDemo(db, config, storage.secret, withUser);
      },
      tour: tourOf,
      ready: (_server, platform) => print(nextSteps(config, tourOf(platform), clientSecret)),
    });
  },
};
