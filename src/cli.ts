/** The command line of this process. */

import { runCommandLine } from './commands/command_line.ts';
import { enableSourceCache, environmentOfProcess } from './config/environment.ts';

enableSourceCache();
process.exitCode = await runCommandLine(process.argv.slice(2), {
  environment: environmentOfProcess(),
  folder: process.cwd(),
  print: (line) => process.stdout.write(`${line}\n`),
  printError: (line) => process.stderr.write(`${line}\n`),
});
