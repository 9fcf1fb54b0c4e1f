/** `nuncio start`: runs the server with production settings. Logs are JSON lines. */

import { pino } from 'pino';
import type { Command } from './command.ts';
import { openLogDestination } from './log_destination.ts';

export const start: Command = {
  mode: 'start',
  options: [['--no-migrate', 'do not migrate the schema; fail if it is not up to date']],
  async run({ values }, { config }) {
    const logger = pino({ level: config.logLevel, base: null }, openLogDestination(1));
    const { serve } = await import('./serve.ts');
    await serve({
      config,
      logger,
      migrate: values['no-migrate'] !== true,
      ready: (server) => {
        logger.info(
          { base_url: config.baseUrl, address: server.address, config: config.configFile },
          'ready',
        );
      },
    });
  },
};
