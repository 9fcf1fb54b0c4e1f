/** The command line of the examples: `--help`, unknown options, and failures in one line. */

import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';

/**
 * Ends the process after `--help` (exit code 0), and with the usage after an unknown option (exit code 2). From then on, an
 * error ends it with one line, and with the stack if LOG_LEVEL is `debug`.
 */
export function readOptions(
  usage: string,
  options: ParseArgsOptionsConfig = {},
): Readonly<Record<string, unknown>> {
  process.once('uncaughtException', (error) => {
    process.stderr.write(`✗ ${process.env.LOG_LEVEL === 'debug' ? error.stack : error.message}\n`);
    process.exit(1);
  });
  try {
    const { values } = parseArgs({ options: { ...options, help: { type: 'boolean', short: 'h' } } });
    if (values.help !== true) return values;
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n\n${usage}`);
    process.exit(2);
  }
  process.stdout.write(usage);
  process.exit(0);
}
