/**
 * A process that uses an embedded PostgreSQL, for tests that kill such processes or run them as another user.
 *
 *   node embedded_user.ts <dataDir> <server|command> [path of embedded.ts]
 *
 * It writes one line of JSON when it is ready or refused, and one for each line of its log. It exits when its input
 * ends.
 */
import { pathToFileURL } from 'node:url';

const [dataDir, role, module] = process.argv.slice(2);
const path = module ? pathToFileURL(module).href : '../../../src/database/embedded/embedded.ts';
const { startEmbedded } = (await import(path)) as typeof import('../../../src/database/embedded/embedded.ts');
const say = (message: object) => process.stdout.write(`${JSON.stringify(message)}\n`);

try {
  const embedded = await startEmbedded({
    dataDir: dataDir as string,
    role: role as 'server' | 'command',
    log: (log) => say({ log }),
  });
  const { connectionString, description } = embedded;
  say({ connectionString, description });
  for await (const _ of process.stdin);
  await embedded.stop();
} catch (error) {
  say({ error: (error as Error).name, message: (error as Error).message });
  process.exitCode = 1;
}
