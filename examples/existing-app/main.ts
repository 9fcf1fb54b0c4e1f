/**
 * Runs docs/existing-app.md with this checkout in place of the package, on an embedded PostgreSQL. Run
 * `npm run example:existing-app`; ^C ends it and leaves nothing behind.
 */

import { once } from 'node:events';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Client } from 'pg';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { readOptions } from '../options.ts';
import { runGuide } from './guide.ts';

readOptions(`usage: npm run example:existing-app

Runs docs/existing-app.md: a PostgreSQL, a Nuncio server, a shop and another developer's app.
PORT is the port of Nuncio (3000), SHOP_PORT of the shop (4200), PARTNER_PORT of the app (4201).
`);
const { PORT: port = '3000', SHOP_PORT: shopPort = '4200', PARTNER_PORT: partnerPort = '4201' } = process.env;
const checkout = fileURLToPath(new URL('../..', import.meta.url));

await using opened = new AsyncDisposableStack();
const folder = await mkdtemp(join(tmpdir(), 'nuncio-existing-app-'));
opened.defer(() => rm(folder, { recursive: true, force: true }));
const embedded = await startEmbedded({ dataDir: join(folder, 'postgres'), role: 'server' });
opened.defer(() => embedded.stop());
const admin = new Client({ connectionString: embedded.connectionString });
await admin.connect();
await admin.query('create database shop');
await admin.end();
const database = new URL(embedded.connectionString);
database.pathname = '/shop';

await linkPackages();
const { DATABASE_URL: _unused, ...environment } = process.env;
const guide = await runGuide({
  folder,
  database,
  ports: [Number(port), Number(shopPort), Number(partnerPort)],
  environment: { ...environment, PATH: `${dirname(process.execPath)}:${process.env.PATH}` },
  adapt: (command) => command.replaceAll(/^npm (?:init|install) .*$/gm, ''),
});
opened.defer(guide.stop);
const [nuncioUrl, shopUrl, partnerUrl] = guide.urls;
const stopped = Promise.race([once(process, 'SIGINT'), once(process, 'SIGTERM')]);
process.stdout.write(`
  The shop                 ${shopUrl}   ann@example.com, password "correct horse"
  Somebody else's app      ${partnerUrl}/connect   connect the shop, place an order, and see it at ${partnerUrl}
  Nuncio                   ${nuncioUrl}
  The guide's files        ${folder}   (^C ends it all and deletes them)

`);
await stopped;

/** What `npm install` in the guide does, with the sources of this checkout as `nuncio`. */
async function linkPackages(): Promise<void> {
  const modules = join(folder, 'node_modules');
  const nuncio = join(modules, 'nuncio');
  await mkdir(join(modules, '.bin'), { recursive: true });
  await mkdir(nuncio);
  await writeFile(join(folder, 'package.json'), '{"type":"commonjs"}');
  const exports = { '.': './src/index.ts', './protect': './src/protect/protect.ts' };
  await writeFile(join(nuncio, 'package.json'), JSON.stringify({ name: 'nuncio', type: 'module', exports }));
  await symlink(join(checkout, 'src'), join(nuncio, 'src'));
  const command = `#!/bin/sh\nexec '${process.execPath}' '${join(checkout, 'src', 'main.ts')}' "$@"\n`;
  await writeFile(join(modules, '.bin', 'nuncio'), command, { mode: 0o755 });
  for (const name of ['express', 'pg', 'openid-client', 'standardwebhooks']) {
    await symlink(join(checkout, 'node_modules', name), join(modules, name));
  }
}
