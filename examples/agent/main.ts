/**
 * Agent: an AI agent that knows one URL. It signs a user in, uses tools, is told of events, and stops when the user disconnects it.
 *
 *   npm run demo:agent              you sign in and disconnect in your browser
 *   npm run demo:agent -- --once    the same without a browser, and exit
 *
 * The client is `@ai-sdk/mcp`, unmodified. The model follows a script, so nothing leaves this machine.
 */

import { readOptions } from '../options.ts';
import { findOrStartNuncio } from '../reader/nuncio.ts';
import { runAgent } from './agent.ts';
import { browserUser, scriptedUser } from './user.ts';

const usage = `usage: npm run demo:agent -- [--once]

Runs an AI agent that connects to a server by the Model Context Protocol. It uses the server that runs, or starts one.

  --once   go through all steps without a browser and exit
  --help   show this help

NUNCIO_DATA_DIR or DATABASE_URL must be those of the server (default ./data).
`;

for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));

const isOnce = readOptions(usage, { once: { type: 'boolean' } }).once === true;
const nuncio = await findOrStartNuncio(true);
try {
  await runAgent(nuncio, (isOnce ? scriptedUser : browserUser)(nuncio.baseUrl));
} finally {
  await nuncio.stop();
}
process.stdout.write('Every step succeeded.\n');
